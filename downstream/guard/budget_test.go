package guard

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// newFloodAccounts returns accounts of connections of one peer.
func newFloodAccounts(t *testing.T, number int) []*Account {
	t.Helper()
	connections := newConnections(WithDefaults(Limits{}))
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

// A floodingConn is a connection of a host that sends first, and then the same bytes without end.
type floodingConn struct {
	net.Conn
	host          string
	first, repeat string
	read          int // bytes that were read of repeated ones
}

// RemoteAddr implements net.Conn.
func (c *floodingConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// Read implements net.Conn.
func (c *floodingConn) Read(b []byte) (n int, err error) {
	n = copy(b, c.first)
	c.first = c.first[n:]
	for len(c.first) == 0 && n < len(b) {
		more := copy(b[n:], c.repeat[c.read%len(c.repeat):])
		n, c.read = n+more, c.read+more
	}
	return n, nil
}

// frame returns an encoded HTTP/2 frame.
func frame(kind http2.FrameType, length int) string {
	var out bytes.Buffer
	_ = http2.NewFramer(&out, nil).WriteRawFrame(kind, 0, 1, make([]byte, length)) // cannot fail
	return out.String()
}

// serveFlood returns the connection of a gRPC server to a client that repeats an HTTP/2 frame.
func serveFlood(t *testing.T, g *Guard, frame string) (net.Conn, *floodingConn) {
	t.Helper()
	raw := &floodingConn{host: "10.0.0.1", first: http2Preface, repeat: frame}
	conn, _, err := g.Credentials(insecure.NewCredentials()).ServerHandshake(raw)
	check.OK(t, err)
	return conn, raw
}

// flood reads a connection for a while, and returns the number of reads. Each is of up to size bytes.
func flood(t *testing.T, conn net.Conn, size int, during time.Duration) (reads int) {
	b := make([]byte, size)
	for began := time.Now(); time.Since(began) < during; reads++ {
		if _, err := conn.Read(b); err != nil || reads > 5_000_000 {
			t.Errorf("after %d reads, which should be rate-limited: %v", reads, err)
			break
		}
	}
	return reads
}

// TestB35_FrameRateLimit: the relay reads connFrames frames a second of a connection, with bursts of ten times as
// many. Frames that cause more work or have more than 2 KiB count as several.
func TestB35_FrameRateLimit(t *testing.T) {
	const rate = connFrames
	for _, tt := range []struct {
		name   string
		repeat string
		price  int // of repeat in frames
		poll   bool
	}{
		{"PING", frame(http2.FramePing, 8), 1, false},
		{"unknown frames", frame(0xee, 0), 1, false},
		{"requests", frame(http2.FrameData, 10), 11, false},
		{"large frames", frame(http2.FrameSettings, 2<<10), 2, false},
		{"streams", frame(http2.FrameHeaders, 10), 11, false},
		{"resets", frame(http2.FrameRSTStream, 4), 51, false},
		{"polls over HTTP/2", frame(http2.FrameHeaders, 10), 11, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(Limits{})
				conn, raw := serveFlood(t, g, tt.repeat)
				if tt.poll {
					conn = &pollConn{Conn: raw, account: newAccount(&g.connections, raw.host), guard: g, leave: func() {}}
				}
				flood(t, conn, 1<<10, time.Minute)
				read, want := tt.price*raw.read/len(tt.repeat), rate*(10+60)
				if slack := 3 * rate / 2; read < want-slack || read > want+slack {
					t.Errorf("read frames at a price of %d in a minute, want %d ±%d", read, want, slack)
				}
				check.Equal(t, "reports of a rate limit", g.Counters.Causes()[LimitFrames], 1)
			})
		})
	}
}

// TestB35_HTTP1ByteRateLimit: a read of HTTP/1, which has no frames, counts as a frame for each 2 KiB.
func TestB35_HTTP1ByteRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(Limits{})
		raw := &floodingConn{host: "10.0.0.1", repeat: "PRIVATE / HTTP/1.1\r\n\r\n"}
		conn := &pollConn{Conn: raw, account: newAccount(&g.connections, raw.host), guard: g, leave: func() {}}
		const want = 10*connFrames/2 + 60*connFrames // a burst with two frames in each read, then small reads
		if reads := flood(t, conn, 4<<10, time.Minute); reads < want-connFrames || reads > want+connFrames {
			t.Errorf("%d reads in a minute, want %d ±%d", reads, want, connFrames)
		}
	})
}

// TestB35_FrameRateLimitOfAPeer: of all connections of a peer, the relay reads four times as many frames as of one, plus
// the free frames of each connection.
func TestB35_FrameRateLimitOfAPeer(t *testing.T) {
	const rate, connections = connFrames, 20
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(Limits{})
		var all [connections]*floodingConn
		var done sync.WaitGroup
		for i := range all {
			var conn net.Conn
			conn, all[i] = serveFlood(t, g, frame(http2.FramePing, 8))
			done.Go(func() { flood(t, conn, 1<<10, time.Minute) })
		}
		done.Wait()
		sum := 0
		for _, c := range all {
			sum += c.read / len(c.repeat)
		}
		want := 4*rate*(10+60) + connections*50*(20+60)
		if slack := want / 100; sum < want-slack || sum > want+slack {
			t.Errorf("read %d frames of %d connections in a minute, want %d ±%d", sum, connections, want, slack)
		}
	})
}

// TestB35_RepliesAreNotRateLimited: replies to responses are not charged. A connection that sends little is not delayed
// by other connections of its peer.
func TestB35_RepliesAreNotRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(Limits{})
		var peers []*Account
		var over sync.WaitGroup
		for i := range 20 {
			conn, _ := serveFlood(t, g, frame(http2.FramePing, 8))
			if peers = append(peers, conn.(*grpcConn).account); i >= 2 {
				over.Go(func() { flood(t, conn, 1<<10, 2*time.Minute) })
			}
		}
		began := time.Now()
		for range 10_000 { // a response, its ACK and three WINDOW_UPDATE frames
			peers[0].Responded(100)
			peers[0].countFrame(dataFrame, 100)
			for range 3 {
				peers[0].countFrame(0x8, 4)
			}
			if peers[0].throttle(); peers[0].pause > 0 {
				t.Fatalf("a connection that only sends replies is paused for %v", peers[0].pause)
			}
		}
		check.Equal(t, "delay of 10,000 replies", time.Since(began), 0)
		for range 60 { // load reports
			time.Sleep(time.Second)
			peers[1].countFrame(dataFrame, 100)
			if peers[1].throttle(); peers[1].pause > 0 {
				t.Fatalf("a connection that sends little is paused for %v", peers[1].pause)
			}
		}
		over.Wait()
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
			t.Fatalf("connection %d is refused", i)
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

// TestB35_PollRateLimit: each poll costs ten frames. A poll that would wait for longer than maxPause is refused.
func TestB35_PollRateLimit(t *testing.T) {
	all := newFloodAccounts(t, 1)[0].connections
	now := time.Now()
	waited, began, refused := 0, 0, 0
	for range 50_000 { // the burst allows 20,000, and the rate of the next 5 s another 10,000
		wait, is, may := all.admitPoll("a", now)
		switch {
		case !may:
			refused++
		case wait > 0:
			waited++
		}
		if is {
			began++
		}
	}
	if waited != 10_000 || refused != 20_000 || began != 1 {
		t.Errorf("of 50,000 polls %d wait, %d are refused, and %d report the start of a rate limit; want 10,000, 20,000 and 1", waited, refused, began)
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
			t.Errorf("in a minute %d connections accepted and %d refused; want about %d, those of 65 s, since each waits for up to 5 s", soon, refused, want)
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

// TestB35_AsManyConnectionsAtOnceAsAPeerMayHave: the budget of new connections follows the limit of open ones, but is
// never less than 10,000.
func TestB35_AsManyConnectionsAtOnceAsAPeerMayHave(t *testing.T) {
	for most, want := range map[int]int{100: 10_000, 20_000: 20_000} {
		all, now := newConnections(WithDefaults(Limits{MaxPeerConnections: most})), time.Now()
		once := 0
		for all.admit("a", now); all.delay("a", now) == 0; all.admit("a", now) {
			once++
		}
		check.Equal(t, fmt.Sprintf("connections at once with MaxPeerConnections=%d", most), once, want)
	}
}

// A hostListener accepts connections in memory, from hosts that the test chooses.
type hostListener struct {
	net.Listener
	conns chan net.Conn // the test closes it to close the listener
}

// Accept implements net.Listener.
func (l hostListener) Accept() (net.Conn, error) {
	if conn, open := <-l.conns; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// dial returns the remote end of a new connection.
func (l hostListener) dial(host string) net.Conn {
	near, far := net.Pipe()
	l.conns <- hostConn{near, host}
	return far
}

// A hostConn is a connection from a host.
type hostConn struct {
	net.Conn
	host string
}

// RemoteAddr implements net.Conn.
func (c hostConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// TestB35_ListenerRefusesConnections: the listener closes only connections that exceed the rate.
func TestB35_ListenerRefusesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := hostListener{conns: make(chan net.Conn)}
		l := newGuard(Limits{}).Listener(inner)
		came := make(map[string]int)
		done := make(chan struct{})
		go func() { // ends with the listener
			defer close(done)
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				came[hostIP(conn.RemoteAddr().String())]++
				_ = conn.Close()
			}
		}()
		const allowed = 11_000 // 10,000 at once, and those of the next 5 s
		for i := range allowed + 100 {
			from := "10.0.0.1"
			if i%1110 == 0 {
				from = "10.0.0.2"
			}
			if _, err := inner.dial(from).Read(make([]byte, 1)); err == nil {
				t.Error("read a byte from a closed connection")
			}
		}
		close(inner.conns)
		<-done
		if want := map[string]int{"10.0.0.1": allowed, "10.0.0.2": 10}; !maps.Equal(came, want) {
			t.Errorf("accepted connections of %v, want %v", came, want)
		}
	})
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
		time.AfterFunc(time.Second, b.Close)
		began := time.Now()
		if n := b.AwaitRead(1 << 15); n != throttledRead || time.Since(began) != time.Second {
			t.Errorf("AwaitRead allows %d bytes after %v, want %d after 1s", n, time.Since(began), throttledRead)
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
