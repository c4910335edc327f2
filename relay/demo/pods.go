package demo

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// maxServers is how many web servers the pods of a mesh share: more than there are pods at one time.
const maxServers = 400

// pods are web servers on loopback, one for each pod of the mesh, so that an Envoy has something to send requests to.
// The pod after the last server has the first one again, as addresses of pods return.
type pods struct {
	listeners []*net.TCPListener
	server    http.Server
	served    sync.WaitGroup

	mu       sync.Mutex
	clusters map[int]string // by port, of the newest pod there; guarded by mu
	made     int            // pods so far; guarded by mu
}

// openPods starts the servers. The caller must close them.
func openPods() (*pods, error) {
	p := &pods{clusters: make(map[int]string)}
	p.server = http.Server{Handler: http.HandlerFunc(p.answer), ReadHeaderTimeout: 10 * time.Second}
	for range maxServers {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start the pods: %w", err), p.close())
		}
		p.listeners = append(p.listeners, l)
		p.served.Go(func() { _ = p.server.Serve(l) }) // ends with close
	}
	return p, nil
}

// add returns the address of a new pod of a cluster.
func (p *pods) add(cluster string) (address string, port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.listeners[p.made%maxServers].Addr().(*net.TCPAddr)
	p.made++
	p.clusters[at.Port] = cluster
	return at.IP.String(), at.Port
}

// answer responds with the name of the pod.
func (p *pods) answer(w http.ResponseWriter, r *http.Request) {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		http.Error(w, "the server does not know its address", http.StatusInternalServerError)
		return
	}
	p.mu.Lock()
	cluster := p.clusters[at.Port]
	p.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, "%s, pod %s\n", cluster, net.JoinHostPort(at.IP.String(), strconv.Itoa(at.Port))) //nolint:gosec // G705: plain text of our own; the client may have left
}

// close ends all servers.
func (p *pods) close() error {
	err := p.server.Close()
	p.served.Wait()
	return err
}
