package transport

import (
	"math/rand/v2"
	"time"

	"golang.org/x/net/http2"
)

const (
	// maxPingStrikes is the number of pings at intervals below Config.PingInterval that a client may send without a
	// response in between. It is that of grpc-go.
	maxPingStrikes = 2

	// leaveTimeout is how long the second step of leaving waits for an answer of the client.
	leaveTimeout = 5 * time.Second
)

// leavePing is the content of the PING whose ACK ends the first step of leaving.
var leavePing = [8]byte{'l', 'e', 'a', 'v', 'e'}

// A leaving is a step of the end of a connection.
type leaving int

const (
	staying  leaving = iota
	refusing         // the first GOAWAY was sent: streams that the client opened before it has read it are served
	gone             // the second GOAWAY was sent, which names the last stream
)

// timers are the timers of a connection. They are guarded by its mutex, and nil while they do not run.
type timers struct {
	ping  *time.Timer // the next ping, or its timeout
	age   *time.Timer // the maximum age, and then its grace period
	leave *time.Timer // the second step of leaving
	aged  bool        // the maximum age has passed, and age is the timer of the grace period
}

// stop stops all timers.
func (t *timers) stop() {
	for _, timer := range []*time.Timer{t.ping, t.age, t.leave} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// startTimers starts the timers of a connection whose client has sent its SETTINGS. The caller must hold mu.
func (c *Conn) startTimers() {
	k := c.server.cfg.Keepalive
	if c.failed != nil {
		return
	}
	if k.Time > 0 {
		c.timers.ping = time.AfterFunc(k.Time, c.keepAlive) // stopped by end
		if c.socket.raw != nil {
			setUserTimeout(c.socket.raw, k.Timeout)
		}
	}
	if k.MaxConnectionAge > 0 {
		tenth := int64(k.MaxConnectionAge/10) + 1
		jitter := time.Duration(rand.Int64N(2*tenth) - tenth) // as grpc-go, so that clients do not return at once
		c.timers.age = time.AfterFunc(k.MaxConnectionAge+jitter, c.expire)
	}
}

// keepAlive sends a PING if nothing was received for Keepalive.Time, and ends the connection if no answer arrives.
func (c *Conn) keepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return
	}
	k, t := c.server.cfg.Keepalive, &c.timers
	read := c.began.Add(time.Duration(c.heard.Load()))
	switch {
	case c.pinged.Load():
		c.failLocked(errNoAnswer)
	case time.Since(read) < k.Time:
		t.ping.Reset(k.Time - time.Since(read))
	default:
		c.pinged.Store(true)
		c.control = appendPing(c.control, 0, [8]byte{})
		c.pump()
		t.ping.Reset(k.Timeout)
	}
}

// expire makes a connection leave at its maximum age, and ends it after the grace period.
func (c *Conn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed != nil:
		return
	case c.timers.aged:
		c.failLocked(errAge)
		return
	}
	c.timers.aged = true
	c.leaveLocked()
	if grace := c.server.cfg.Keepalive.MaxConnectionAgeGrace; grace > 0 {
		c.timers.age.Reset(grace)
	}
}

// drain makes the client open no further streams, and closes the connection when all have ended.
func (c *Conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveLocked()
}

// leaveLocked sends GOAWAY. A client may have opened streams meanwhile, which are served. Once it has answered a PING
// it has seen the GOAWAY. The caller must hold mu.
func (c *Conn) leaveLocked() {
	if c.leaving != staying || c.failed != nil {
		return
	}
	c.leaving = refusing
	if !c.begun {
		return // greet sends it
	}
	c.goAwayLocked()
	c.pump()
}

// goAwayLocked queues the first GOAWAY. The caller must hold mu.
func (c *Conn) goAwayLocked() {
	c.control = appendGoAway(c.control, maxWindow, http2.ErrCodeNo, "graceful_stop")
	c.control = appendPing(c.control, 0, leavePing)
	c.timers.leave = time.AfterFunc(leaveTimeout, c.left) // stopped by end
}

// left is the second step of leaving.
func (c *Conn) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != refusing || c.failed != nil {
		return
	}
	c.leaving = gone
	c.control = appendGoAway(c.control, c.last, http2.ErrCodeNo, "")
	c.pump()
}

// A pingLimit limits the pings of a client.
type pingLimit struct {
	last    time.Time
	strikes int
}

// ping answers PING.
func (c *Conn) ping(f *http2.PingFrame) error {
	if f.IsAck() {
		if f.Data == leavePing {
			c.left()
		}
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.answer(func(b []byte) []byte { return appendPing(b, http2.FlagPingAck, f.Data) }); err != nil {
		return err
	}
	now := time.Now()
	defer func() { c.pings.last = now }()
	if c.sent { // as in grpc-go: clients may probe the round trip of what they receive
		c.sent, c.pings.strikes = false, 0
		return nil
	}
	if now.Sub(c.pings.last) < c.server.cfg.PingInterval {
		c.pings.strikes++
	}
	if c.pings.strikes > maxPingStrikes {
		return errPings
	}
	return nil
}
