package get

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/cli"
)

// options are the flags and arguments of tender get.
type options struct {
	typeURL string
	names   []string // none means all resources of the type

	address     string // host:port, unix:path, or a gRPC target
	output      string // one of Outputs
	watch       bool
	lint        bool
	static      []string // patterns of clusters that exist without the server, for lint
	sotw        bool
	timeout     time.Duration // of the wait for a response; 0 means none
	nodeFlags   nodeChoice
	node        *corepb.Node // made of nodeFlags
	tls         cli.TLSFlags
	dialOptions []grpc.DialOption
}

// getHelp is the long help text of tender get.
var getHelp = "Get requests resources from an xDS v3 server (Tender or any other with ADS) and\n" +
	"prints them. TYPE is one of\n\n" +
	"  " + strings.Replace(cli.Types, " clusters", "\n  clusters", 1) + "\n\n" +
	"or a type URL. Without a NAME it requests all resources of that type.\n\n" +
	"Fields that Envoy marks as sensitive are printed as [redacted], and resources of an\n" +
	"unknown type as their size and digest. YAML and JSON are a list of resources, which\n" +
	"a file origin can read.\n\n" +
	"A relay serves get as a client of the node group to which the Node belongs that get sends.\n" +
	"Its user agent name is tender-get, usually a group of its own. --group selects a group\n" +
	"of the relay of this host, in tender status. So do --node-file, --metadata and the other\n" +
	"flags of the Node. If the relay of this host lacks the group, get prints a warning:\n" +
	"the relay opens the group, subscribes at its origins for it, and keeps it for some time.\n\n" +
	"Delta does not mark the end of the wildcard set: without a NAME, get ends once no\n" +
	"new resource has arrived for half a second. If the server responds that a NAME does not\n" +
	"exist, the exit code is 1. If it does not respond, it is 1 after --timeout.\n\n" +
	"With --lint, get checks the resources and prints findings: bytes that cannot be\n" +
	"decoded, references to resources that do not exist, values that a generated validator\n" +
	"rejects, and unknown fields. It also requests the resources that these refer to.\n" +
	"Without a TYPE it begins with all clusters and listeners. The exit code is 1 if a\n" +
	"resource cannot be decoded or refers to one that does not exist."

// Groups are the node groups of the relay at an address.
type Groups interface {
	// Warning returns what an operator should know before a Node is sent; empty if there is nothing.
	Warning(ctx context.Context, address string, n *corepb.Node) string

	// Member returns a Node of the group with a key or name.
	Member(ctx context.Context, address, group string) (*corepb.Node, error)
}

// NewCommand returns the command tender get. The Node that it sends contains version as user agent version. The dial
// options are added to those of the command.
func NewCommand(version string, groups Groups, dialOptions ...grpc.DialOption) *cobra.Command {
	o := options{dialOptions: dialOptions}
	cmd := &cobra.Command{
		Use:   "get [flags] TYPE [NAME…] | --lint [TYPE [NAME…]]",
		Short: "Print the resources that an xDS server sends",
		Long:  getHelp,
		Example: "  tender get cds\n" +
			"  tender get eds web -o json\n" +
			"  tender get -w -o wide lds\n" +
			"  tender get --group NAMESPACE=shop cds\n" +
			"  tender get -a xds.example.com:443 --server-name xds.example.com --sotw rds front\n" +
			"  tender get --node-file bootstrap.yaml cds\n" +
			"  tender get --user-agent envoy --metadata NAMESPACE=shop --locality eu/eu-1 eds web\n" +
			"  tender get --lint -a xds.example.com:443 --user-agent envoy",
		Args: func(cmd *cobra.Command, args []string) error {
			if !o.lint && len(args) == 0 {
				return errors.New("a TYPE is required, such as cds; --lint works without one")
			}
			return nil
		},
		ValidArgsFunction: cli.CompleteFirst(strings.Fields(cli.Types)...),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.lint && !cmd.Flags().Changed("output") {
				o.output = "wide"
			}
			if err := o.take(args); err != nil {
				return cli.UsageError{Cause: err}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			var err error
			member := func(group string) (*corepb.Node, error) { return groups.Member(ctx, o.address, group) }
			if o.node, err = o.nodeFlags.make(version, cmd.InOrStdin(), member); err != nil {
				return err
			}
			p := &printer{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), format: o.output}
			p.warn(groups.Warning(ctx, o.address, o.sentNode()))
			return get(ctx, o, p)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.address, "address", "a", "127.0.0.1:18000", "server: `host:port` or unix:path")
	f.StringVarP(&o.output, "output", "o", "yaml", "output format: "+strings.Join(Outputs, ", "))
	f.BoolVarP(&o.watch, "watch", "w", false, "watch, and print added, changed and removed resources")
	f.BoolVar(&o.lint, "lint", false, "check the resources, and print findings instead")
	f.StringArrayVar(&o.static, "static-cluster", nil, "with --lint, `name` of a cluster in the bootstrap of clients; * matches any characters")
	f.BoolVar(&o.sotw, "sotw", false, "use state-of-the-world ADS (default Delta)")
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "maximum wait for a response; 0 is forever")
	o.nodeFlags.add(cmd)
	o.tls.Add(cmd, "address")
	cli.CompleteFlag(cmd, "output", Outputs...)
	return cmd
}

// typeAliases maps names of resources, which TYPE may also be, to short names of types.
var typeAliases = map[string]string{
	"clusters": "cds", "endpoints": "eds", "listeners": "lds", "routes": "rds", "secrets": "sds",
}

// take sets the type and names from the arguments TYPE and NAME…, and validates all flags. Only lint allows no TYPE.
func (o *options) take(args []string) error {
	if len(args) == 0 { // for lint
		return o.check()
	}
	var ok bool
	switch typ := args[0]; {
	case strings.Contains(typ, "/"):
		o.typeURL, ok = typ, true
	case strings.Contains(typ, "."):
		o.typeURL, ok = "type.googleapis.com/"+typ, true
	default:
		typ = strings.ToLower(typ)
		o.typeURL, ok = schema.TypeURLFor(cmp.Or(typeAliases[typ], typ))
	}
	if !ok {
		return fmt.Errorf("unknown type %q: want one of %s, or a type URL", args[0], cli.Types)
	}
	o.names = args[1:]
	for _, name := range o.names {
		if name == "" {
			return errors.New("empty name")
		}
	}
	return o.check()
}

// check validates the values of the flags, and combinations of them.
func (o *options) check() error {
	if !validOutput(o.output) {
		return fmt.Errorf("--output=%s: want one of %s", o.output, strings.Join(Outputs, ", "))
	}
	if err := o.checkLint(); err != nil {
		return err
	}
	if o.timeout < 0 {
		return fmt.Errorf("--timeout=%s: must not be negative", o.timeout)
	}
	if err := o.tls.Check(); err != nil {
		return err
	}
	if strings.HasPrefix(o.address, "unix:") || strings.Contains(o.address, "://") {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.address); err != nil {
		return fmt.Errorf("--address=%s: want host:port or unix:path", o.address)
	}
	return nil
}

// dial returns a connection to the server. gRPC connects when the connection is first used.
func (o *options) dial() (*grpc.ClientConn, error) {
	config, err := o.tls.Config()
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	// 1 GiB: the default of gRPC, 4 MiB, is less than the responses of some servers.
	const largest = 1 << 30
	conn, err := grpc.NewClient(o.address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
	}, o.dialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.address, err)
	}
	return conn, nil
}

// get subscribes to the resources and prints them, findings about them (o.lint), or changes until ctx ends (o.watch).
func get(ctx context.Context, o options, p *printer) error {
	conn, err := o.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	if o.lint {
		return getLint(ctx, conn, o, p)
	}
	if !o.watch {
		return getOnce(ctx, conn, o, p)
	}
	return listen(ctx, conn, o, func(ctx context.Context, answers <-chan answer) error { return getWatch(ctx, o, answers, p) })
}

// listen opens a stream, and calls take with a channel of its answers. Once take has returned, listen closes the stream
// and waits for the receiving goroutine. The channel is never closed: after the answer with an error, nothing follows.
func listen(ctx context.Context, conn *grpc.ClientConn, o options, take func(context.Context, <-chan answer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan answer)
	var receiving sync.WaitGroup
	receiving.Go(func() { receive(ctx, conn, o, answers) })
	defer receiving.Wait()
	defer cancel()
	return take(ctx, answers)
}

// quiet is the time without a new resource after which a wildcard set counts as complete. It is also the time after
// which a SotW stream repeats an unanswered wildcard subscription as "*".
const quiet = 500 * time.Millisecond

// getOnce collects the requested resources, prints them, and returns an error that lists missing ones.
func getOnce(ctx context.Context, conn *grpc.ClientConn, o options, p *printer) error {
	c, err := collect(ctx, conn, o)
	if err != nil {
		return err
	}
	if err := p.all(c.sorted()); err != nil {
		return fmt.Errorf("print resources: %w", err)
	}
	return c.shortfall(o)
}

// collect opens a stream and collects the requested resources. With an error, the collection contains the resources
// received before it.
func collect(ctx context.Context, conn *grpc.ClientConn, o options) (*collection, error) {
	c := newCollection(o)
	return c, listen(ctx, conn, o, func(ctx context.Context, answers <-chan answer) error { return c.take(ctx, o, answers) })
}

// errInterrupted is the error of a get that a signal ends.
var errInterrupted = errors.New("interrupted")

// take applies answers until the collection is complete. An open-ended collection is complete after quiet without a new
// resource. It ends after o.timeout too, with an error if the server has sent no response.
func (c *collection) take(ctx context.Context, o options, answers <-chan answer) error {
	expired := after(o.timeout)
	var settled <-chan time.Time
	for done := false; !done; {
		select {
		case a := <-answers:
			if ctx.Err() != nil { // which ends the stream with an error, too
				return errInterrupted
			}
			if a.err != nil {
				return fmt.Errorf("get from %s: %w", o.address, a.err)
			}
			if c.more(c.apply(a)) {
				settled = time.After(quiet)
			}
			done = c.complete()
		case <-settled:
			done = true
		case <-expired:
			if c.answers == 0 {
				c.silent = c.connected
				return fmt.Errorf("get from %s: %w", o.address, c.silence(o))
			}
			done = true
		case <-ctx.Done():
			return errInterrupted
		}
	}
	return nil
}

// getWatch prints every change until ctx ends, then returns nil. It returns an error if the stream ends, or if it is
// not open after o.timeout.
func getWatch(ctx context.Context, o options, answers <-chan answer, p *printer) error {
	c := newCollection(o)
	expired := after(o.timeout)
	for {
		select {
		case a := <-answers:
			if ctx.Err() != nil {
				return nil
			}
			if a.err != nil {
				return fmt.Errorf("watch %s: %w", o.address, a.err)
			}
			if err := p.changes(c.apply(a)); err != nil {
				return fmt.Errorf("print changes: %w", err)
			}
		case <-expired:
			if !c.connected {
				return fmt.Errorf("watch %s: %w", o.address, c.silence(o))
			}
			if c.answers == 0 {
				p.note(fmt.Sprintf("nothing within %s, still waiting", o.timeout))
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// after is [time.After], except that the channel for 0 never receives.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}
