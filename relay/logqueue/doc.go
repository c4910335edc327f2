// Package logqueue stands between a log and its output, such as stderr, so that serving never waits for a reader of it.
//
// A pipe that nobody reads blocks its writer, and an output may fail, for example on a full disk. A [Queue] therefore
// takes records without blocking, and a goroutine of its own writes them in order. The queue is bounded in bytes. If it
// is full, it drops new records, and reports their number once its output takes records again. Each class of records may
// use a larger part of the queue than the class below it. Debug records that nobody reads thus leave space for errors,
// and errors for the audit records of operators.
//
// # Concurrency properties
//
// The methods of a Queue may be called from any goroutine, and none but [Queue.Flush] blocks. The goroutine that writes
// is started by a record and ends when the queue is empty. It outlives its relay if its output blocks.
//
// The package is not a stable API: programs that embed Tender use package relay.
package logqueue
