// Package transcript plays conversations of xDS that are written in files, and compares what happens with what is written.
//
// A line that begins with ">" is an event. The indented lines below it are its results. Other lines are comments. A line of
// four dashes ends a scene.
//
//	> for V = delta, sotw               (plays the scene once for each value of V; "" is empty; one value: V abbreviates it)
//	> relay TENDER_ACK_WAIT=1s          (a variable of the relay, from the scene's beginning)
//	> wait 5s                           (in virtual time)
//	> repeat 3: origin cds a@#; wait 1s
//
// Where results differ between values, the values of a line precede it, such as "[sotw cds lds]".
//
// All other events are those of a [Stage]: of the package under test and its peers. [Notation] is how they write resources,
// and [Origin] has the events of an origin.
//
// The package is not a stable API: programs that embed Tender use package relay.
package transcript
