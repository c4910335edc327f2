// Package browser contains only tests. They check the status page of a relay in Chromium, mostly with an origin and
// clients.
package browser
