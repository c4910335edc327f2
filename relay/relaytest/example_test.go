package relaytest_test

import (
	"context"
	"fmt"

	"github.com/xdstender/tender/relay/relaytest"
)

// program is a TB for a program that is not a test.
type program struct {
	ctx     context.Context
	cleanup []func()
}

func (p *program) Helper()                           {}
func (p *program) Context() context.Context          { return p.ctx }
func (p *program) Cleanup(f func())                  { p.cleanup = append(p.cleanup, f) }
func (p *program) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (p *program) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (p *program) end() {
	for i := range p.cleanup {
		p.cleanup[len(p.cleanup)-1-i]()
	}
}

// An origin, a client, a change, and a check that nothing else was sent. In a test, use t instead of tb, and
// t.Context() instead of ctx.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tb := &program{ctx: ctx}
	defer tb.end()

	origin := relaytest.NewOrigin(tb, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("web"), relaytest.Cluster("api"))

	client := relaytest.NewClient(tb, origin.Dial(), relaytest.ClientOptions{AutoAck: true})
	client.Subscribe(relaytest.ClusterType)
	client.WaitState(ctx, func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "web", "api") })

	origin.Remove(relaytest.ClusterType, "api")
	fmt.Println(client.Recv(ctx).Removed)

	client.Fence(ctx, relaytest.ClusterType, "web", func() {
		origin.Put(relaytest.StaticCluster("web", "127.0.0.1:8080"))
	})
	fmt.Println(client.State().Names(relaytest.ClusterType))
	// Output:
	// [api]
	// [web]
}
