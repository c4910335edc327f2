package relaytest

import "context"

// Fence checks that no other response is on its way to the client. It calls change, which must change one resource at
// the origin, to which the client is subscribed. The test fails unless the next response contains exactly this change.
// A full-state response may contain other resources if they are unchanged. Fence accepts the response.
func (c *Client) Fence(ctx context.Context, typeURL, name string, change func()) *Response {
	c.tb.Helper()
	return fence(ctx, c, typeURL, name, change, func(State, *Response) bool { return false })
}

// FenceReconnected is Fence for a client that has reconnected. It skips responses before the change that repeat
// resources of the client, or remove resources that it does not have (B.3).
func (c *Client) FenceReconnected(ctx context.Context, typeURL, name string, change func()) *Response {
	c.tb.Helper()
	return fence(ctx, c, typeURL, name, change, changesNothing)
}

// fence implements Fence. It skips responses before the change for which ignore returns true.
func fence(
	ctx context.Context, c *Client, typeURL, name string, change func(), ignore func(State, *Response) bool,
) *Response {
	c.tb.Helper()
	before := c.State()
	change()
	for {
		resp := c.Recv(ctx)
		if !c.options.AutoAck {
			c.Ack(resp)
		}
		problem := unexpected(before, resp, typeURL, name)
		if problem == "" {
			return resp
		}
		if !ignore(before, resp) {
			c.tb.Fatalf("%v: the next response is not exactly the change of %s %q: %s\n got %v\n%s",
				c, ShortType(typeURL), name, problem, resp, c.dump())
		}
	}
}

// changesNothing reports whether a response does not change the state of a client.
func changesNothing(before State, resp *Response) bool {
	had := before[resp.TypeURL]
	for _, r := range resp.Resources {
		if before.Digest(resp.TypeURL, r.Name) != r.Digest {
			return false
		}
	}
	for _, name := range resp.Removed {
		if _, has := had[name]; has {
			return false
		}
	}
	return !resp.SotW() || !FullState(resp.TypeURL) || len(resp.Resources) == len(had)
}

// unexpected returns "" if a response contains the changed resource and, in a complete set, unchanged resources.
// Otherwise it describes the unexpected content.
func unexpected(before State, resp *Response, typeURL, name string) string {
	if resp.TypeURL != typeURL {
		return "another type"
	}
	if len(resp.Removed) > 0 {
		return "removed " + list(resp.Removed)
	}
	full := resp.SotW() && FullState(typeURL)
	found := false
	for _, r := range resp.Resources {
		switch {
		case r.Name == name:
			found = true
		case !full || r.Digest != before.Digest(typeURL, r.Name):
			return "resource " + r.Name
		}
	}
	if !found {
		return "the resource is missing"
	}
	if had := len(before[typeURL]); full && len(resp.Resources) < had {
		return "other resources are missing"
	}
	return ""
}
