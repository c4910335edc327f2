package admin

// Routes returns the methods and paths of the admin server, by path.
func (s *Server) Routes() map[string]string {
	routes := make(map[string]string)
	for _, r := range s.routes {
		routes[r.path] = r.method
	}
	return routes
}
