package guard

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// newFloodAccounts returns accounts of connections of one peer. Each may send 100 frames a second.
func newFloodAccounts(t *testing.T, number int) []*Account {
	t.Helper()
	connections := newConnections(WithDefaults(Limits{MaxFrameRate: 100}))
	all := &connections
	of := make([]*Account, number)
	for i := range of {
		if _, err := all.enter("a"); err != nil {
			t.Fatal(err)
		}
		of[i] = newAccount(all, "a")
	}
	return of
}

// flood receives frames for a while, as fast as the account reads them, and returns their number.
func flood(b *Account, during time.Duration) (frames int) {
	for began := time.Now(); time.Since(began) < during; {
		_ = b.awaitRead(1)
		for range frameStep {
			b.countFrame(0x6, 9)
		}
		frames += frameStep
		b.throttle()
	}
	return frames
}

// TestB35_FrameRateLimit: the relay reads MaxFrameRate frames a second of a connection, with bursts of ten times as
// many. Of a peer, it reads four times as many, plus the free frames of each connection.
func TestB35_FrameRateLimit(t *testing.T) {
	for _, tt := range []struct{ connections, most int }{{1, 100 * (10 + 60)}, {20, 400*(10+60) + 20*freeFrames*(20+60)}} {
		synctest.Test(t, func(t *testing.T) {
			read := make(chan int)
			for _, b := range newFloodAccounts(t, tt.connections) {
				go func() { read <- flood(b, time.Minute) }() // awaited below
			}
			sum := 0
			for range tt.connections {
				sum += <-read
			}
			if slack := 2 * frameStep * tt.connections; sum < tt.most-slack || sum > tt.most+slack {
				t.Errorf("read %d frames of %d connections in a minute, want %d ±%d", sum, tt.connections, tt.most, slack)
			}
		})
	}
}

// TestB35_HTTP1ByteRateLimit: bytes of HTTP/1, which has no frames, are rate-limited as frames of frameSize.
func TestB35_HTTP1ByteRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, read := newFloodAccounts(t, 1)[0], 0
		for began := time.Now(); time.Since(began) < time.Minute; read += 4 << 10 {
			_ = b.awaitRead(1)
			b.countBytes(4 << 10)
			b.throttle()
		}
		most := 100 * (10 + 60) * frameSize
		if slack := 2 * frameStep * frameSize; read < most-slack || read > most+slack {
			t.Errorf("read %d bytes in a minute, want %d ±%d", read, most, slack)
		}
	})
}

// TestB35_RepliesAreNotRateLimited: replies to responses are not charged. A connection that sends little is not delayed
// by other connections of its peer.
func TestB35_RepliesAreNotRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peers := newFloodAccounts(t, 20)
		over := make(chan int)
		for _, b := range peers[2:] {
			go func() { over <- flood(b, 2*time.Minute) }() // awaited below
		}
		began := time.Now()
		for range 100_000 { // a response, its ACK and three WINDOW_UPDATE frames
			peers[0].Responded(100)
			peers[0].countFrame(dataFrame, 100)
			for range 3 {
				peers[0].countFrame(0x8, 4)
			}
			if peers[0].throttle(); peers[0].pause > 0 {
				t.Fatalf("a connection that only sends replies is paused for %v", peers[0].pause)
			}
		}
		check.Equal(t, "delay of 100,000 replies", time.Since(began), 0)
		for range 60 { // load reports
			time.Sleep(time.Second)
			peers[1].countFrame(dataFrame, 100)
			if peers[1].throttle(); peers[1].pause > 0 {
				t.Fatalf("a connection that sends little is paused for %v", peers[1].pause)
			}
		}
		for range peers[2:] {
			<-over
		}
	})
}

// TestB35_DefaultFrameRateSufficesForClients: the default rate does not delay the connection of a well-behaved client.
func TestB35_DefaultFrameRateSufficesForClients(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rounds int
		every  time.Duration
		frames []int // sizes of the messages in each round
		begin  bool  // each message opens a stream
	}{
		{"reports 50,000 resources with names of 80 bytes, three times", 3, time.Second, []int{50_000 * 100}, false},
		{"sends a load report of 1 MiB every second for ten minutes", 600, time.Second, []int{1 << 20}, false},
		{"opens 2,000 streams at once, each with a request of 1 KiB", 1, 0, make([]int, 2000), true},
		{"sends 200 requests a second for a minute", 12_000, 5 * time.Millisecond, []int{200, 4}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFloodAccounts(t, 1)[0]
				b.connections.limits = WithDefaults(Limits{})
				for range tt.rounds {
					for _, size := range tt.frames {
						for rest := size; rest > 0; rest -= 16 << 10 { // HTTP/2 divides messages into frames
							b.countFrame(dataFrame, min(rest, 16<<10))
						}
						if tt.begin {
							b.countFrame(headersFrame, 300)
							b.countFrame(dataFrame, 1<<10)
						}
						if b.throttle(); b.pause > 0 {
							t.Fatalf("the connection is paused for %v", b.pause)
						}
					}
					time.Sleep(tt.every)
				}
			})
		})
	}
}

// TestB35_DefaultFrameRateSufficesForFleets: if 10,000 clients behind one address connect at once and each sends a
// dozen requests, no client is delayed.
func TestB35_DefaultFrameRateSufficesForFleets(t *testing.T) {
	all := newConnections(WithDefaults(Limits{}))
	now := time.Now()
	for i := range 10_000 {
		if _, may := all.admit("a", now); !may {
			t.Fatalf("connection %d is rejected", i)
		}
		if wait := all.delay("a", now); wait > 0 {
			t.Fatalf("connection %d waits for %v", i, wait)
		}
		if _, err := all.enter("a"); err != nil {
			t.Fatal(err)
		}
		b := newAccount(&all, "a")
		b.countFrame(headersFrame, 300)
		for range 12 {
			b.countFrame(dataFrame, 10<<10)
		}
		if b.throttle(); b.pause > 0 {
			t.Fatalf("client %d is paused for %v", i, b.pause)
		}
	}
}

// TestB35_PollRateLimit: each poll costs ten frames. A poll that would wait for longer than maxPause is rejected.
func TestB35_PollRateLimit(t *testing.T) {
	all := newFloodAccounts(t, 1)[0].connections
	now := time.Now()
	waited, began, rejected := 0, 0, 0
	for range 1000 { // the burst allows 400, and the rate of the next 5 s another 200
		wait, is, may := all.admitPoll("a", now)
		switch {
		case !may:
			rejected++
		case wait > 0:
			waited++
		}
		if is {
			began++
		}
	}
	if waited != 200 || rejected != 400 || began != 1 {
		t.Errorf("of 1000 polls %d wait, %d are rejected, and %d report the start of a rate limit; want 200, 400 and 1", waited, rejected, began)
	}
	if wait, _, _ := all.admitPoll("b", now); wait != 0 {
		t.Errorf("a poll of another peer waits for %v", wait)
	}
}

// TestB35_ConnectionRateLimit: all connections of a peer share a budget, also closed ones: 10,000 connections at once,
// and then 200 a second. None waits for longer than 5 s. The peer is removed once its budget is full.
func TestB35_ConnectionRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newConnections(WithDefaults(Limits{}))
		visit := func() (wait time.Duration, may bool) {
			if _, may := all.admit("a", time.Now()); !may {
				return 0, false
			}
			leave := check.Must(all.enter("a"))
			defer leave()
			return all.delay("a", time.Now()), true
		}
		once := 0
		for wait, may := visit(); wait == 0 && may && once < 20_000; wait, may = visit() {
			once++
		}
		if once != 10_000 {
			t.Errorf("%d connections were accepted at once, want 10,000", once)
		}
		soon, refused := 0, 0
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
			switch wait, may := visit(); {
			case !may:
				refused++
			case wait > maxPause:
				t.Fatalf("a connection waits for %v, want at most %v", wait, maxPause)
			default:
				soon++
			}
		}
		if want := 65 * 200; soon < want-200 || soon > want+200 || refused < 40_000 {
			t.Errorf("in a minute %d connections accepted and %d rejected; want about %d, those of 65 s, since each waits for up to 5 s", soon, refused, want)
		}
		time.Sleep(2 * time.Minute)
		if wait, may := visit(); wait > 0 || !may {
			t.Errorf("two minutes later: a connection waits for %v, allowed %v; want 0s and true", wait, may)
		}
		time.Sleep(sweepEvery)
		leave := check.Must(all.enter("b"))
		leave()
		check.Equal(t, "peers after a sweep", len(all.peers), 0)
	})
}

// TestB35_ListenerRejectsConnections: the listener closes only connections that exceed the rate.
func TestB35_ListenerRejectsConnections(t *testing.T) {
	g := newGuard(Limits{MaxFrameRate: 1}) // a connection costs the frames of 25 s
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	l := g.Listener(inner)
	came, ended := make(chan string, 10), make(chan struct{})
	go func() { // ends with the listener
		defer close(ended)
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			came <- hostIP(conn.RemoteAddr().String())
			_ = conn.Close()
		}
	}()
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	for _, from := range []string{"127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.DialContext(t.Context(), "tcp", inner.Addr().String())
		check.OK(t, err)
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("read a byte from a closed connection")
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"127.0.0.1", "127.0.0.1", "127.0.0.2"} {
		if got := <-came; got != want {
			t.Errorf("accepted a connection of %s, want one of %s", got, want)
		}
	}
}

// TestB35_PausesAreBounded: no pause is longer than maxPause, regardless of the number of frames.
func TestB35_PausesAreBounded(t *testing.T) {
	now := time.Now()
	var b budget
	check.Equal(t, "pause after 2^30 frames", b.spend(1<<30, 1, now), maxPause)
	if pause := b.spend(1, 1000, now.Add(maxPause+time.Second)); pause != 0 {
		t.Errorf("pause %v after a longer time than maxPause, want 0s", pause)
	}
}

// TestB35_PauseEndsWithConnection: the end of a connection ends its pause.
func TestB35_PauseEndsWithConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFloodAccounts(t, 1)[0]
		b.uncharged = 1 << 20
		if began := b.throttle(); !began || b.pause != maxPause {
			t.Fatalf("pause %v, want %v", b.pause, maxPause)
		}
		time.AfterFunc(time.Second, b.close)
		began := time.Now()
		if n := b.awaitRead(1 << 15); n != throttledRead || time.Since(began) != time.Second {
			t.Errorf("awaitRead allows %d bytes after %v, want %d after 1s", n, time.Since(began), throttledRead)
		}
	})
}

// BenchmarkFrames measures the cost of the frame rate limit for each response. The client replies with an ACK and a
// WINDOW_UPDATE.
func BenchmarkFrames(b *testing.B) {
	all := newConnections(WithDefaults(Limits{}))
	all.peers["a"] = new(peerUse)
	log := newAccount(&all, "a")
	b.ReportAllocs()
	for b.Loop() {
		log.Responded(1100)
		log.countFrame(dataFrame, 110)
		log.countFrame(0x8, 4)
		log.throttle()
	}
}
