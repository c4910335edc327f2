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

// maxServers is the number of web servers. It must exceed the number of pods that exist at one time.
const maxServers = 400

// pods are web servers on loopback that answer the requests that an Envoy routes to pods of the mesh. When every
// server was used, new pods use them again, beginning with the first.
type pods struct {
	listeners []*net.TCPListener
	server    http.Server
	served    sync.WaitGroup

	mu       sync.Mutex
	clusters map[int]string // cluster of the newest pod, by port; guarded by mu
	made     int            // number of pods so far; guarded by mu
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
		p.served.Go(func() { _ = p.server.Serve(l) }) // close ends it
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

// answer responds with the cluster and the address of the pod.
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

// close stops all servers and waits until they have returned.
func (p *pods) close() error {
	err := p.server.Close()
	p.served.Wait()
	return err
}
