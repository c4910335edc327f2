package relay

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/config"
)

// warnPlaintext logs the listeners and origins whose plaintext traffic leaves this host. clientTLS reports whether the
// relay has a certificate for its clients.
func warnPlaintext(cfg *Config, clientTLS bool, log *slog.Logger) {
	var origins []string
	plain := cfg.Listen
	if !clientTLS {
		plain = slices.Concat(plain, cfg.RESTListen)
	} else if len(cfg.TLSListen) == 0 {
		plain = nil
	}
	listen := config.NonLoopback(plain)
	for _, o := range config.AllOrigins(cfg) {
		for _, target := range o.Targets {
			address := strings.TrimPrefix(target, "dns:///")
			if o.Access.TLS == TLSOff && !strings.HasPrefix(target, "file:") && !config.IsLoopback(address) {
				origins = append(origins, target)
			}
		}
	}
	if len(listen)+len(origins) > 0 {
		log.Warn("traffic leaves this host without TLS; it can be intercepted and changed",
			slog.String("listen", strings.Join(listen, ",")), slog.String("origin", strings.Join(origins, ",")))
	}
}

// credentialStatus returns the state of the credential files for the admin API.
func (r overview) credentialStatus() []admin.Files {
	all := []admin.Files{}
	for _, s := range r.credentials.Files.Status() {
		f := admin.Files{LoadedAt: s.LoadedAt, NotAfter: s.NotAfter, Refused: s.Refused}
		for _, file := range s.Files {
			f.Files = append(f.Files, admin.File{Variable: file.Variable, Path: file.Path})
		}
		if s.Err != nil {
			f.Error = s.Err.Error()
		}
		all = append(all, f)
	}
	return all
}
