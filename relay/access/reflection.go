package access

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/authz"
)

// reflectionServices is the prefix of the methods of the reflection services of all versions.
const reflectionServices = "/grpc.reflection."

// RefuseReflection is a stream interceptor that refuses reflection, unless the client is on this host or an operator
// with the permission to read.
func (a *Authorizer) RefuseReflection(server any, rpc grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if !strings.HasPrefix(info.FullMethod, reflectionServices) {
		return handle(server, rpc)
	}
	p := guard.PeerOf(rpc.Context())
	if isLocal(p.Host) {
		return handle(server, rpc)
	}
	if p.Certificate != nil {
		if _, err := a.Operator(p.Certificate, authz.Read); err == nil {
			return handle(server, rpc)
		}
	}
	return status.Error(codes.PermissionDenied, "reflection is for clients on this host, and for operators (TENDER_AUTHZ)")
}
