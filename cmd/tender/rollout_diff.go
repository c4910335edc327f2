package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// readRolloutDiff requests all pages of the changes in the editions of rollouts.
func readRolloutDiff(ctx context.Context, c *adminClient, query url.Values) (admin.RolloutDiff, error) {
	return readDiff(ctx, c, "/api/v1/rollout/diff", query)
}

// readDiff requests all pages of changes at a path, and joins them. It sets "after" in query.
func readDiff(ctx context.Context, c *adminClient, path string, query url.Values) (all admin.RolloutDiff, err error) {
	for {
		var page admin.RolloutDiff
		if err := c.get(ctx, path+"?"+query.Encode(), &page); err != nil {
			return all, err
		}
		page.Changes = append(all.Changes, page.Changes...)
		if page.Bodies != nil {
			maps.Copy(page.Bodies, all.Bodies)
		}
		if all = page; page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// A groupedChange is a change that is equal in all its node groups, at least one.
type groupedChange struct {
	admin.RolloutChange          // with the first group
	groups              []string // keys of node groups
}

// groupChanges merges equal changes of different node groups, in order of their first occurrence. It also returns the
// number of origins.
func groupChanges(all []admin.RolloutChange) (grouped []*groupedChange, origins int) {
	digest := func(c *admin.RolloutContent) string {
		if c == nil {
			return ""
		}
		return c.SHA256
	}
	at, names := make(map[[7]string]*groupedChange), make(map[string]bool)
	for _, c := range all {
		names[c.Origin] = true
		key := [...]string{c.Origin, c.TypeURL, nameOf(c), c.AskedAs, c.Change, digest(c.Before), digest(c.After)}
		if at[key] == nil {
			at[key] = &groupedChange{RolloutChange: c}
			grouped = append(grouped, at[key])
		}
		at[key].groups = append(at[key].groups, nodegroup.Name(c.Group))
	}
	return grouped, len(names)
}

// nameOf returns the name of the changed resource, with its dynamic parameters such as key[zone:a].
func nameOf(c admin.RolloutChange) string {
	if len(c.Parameters) == 0 {
		return c.Name
	}
	return c.Name + strings.TrimPrefix(fmt.Sprint(c.Parameters), "map") // fmt sorts the keys
}

// inGroups returns the node group of a change, or the number of node groups if there are several.
func (c *groupedChange) inGroups() string {
	if len(c.groups) > 1 {
		return fmt.Sprintf("%d groups", len(c.groups))
	}
	return cli.OrDash(c.groups[0])
}

// size returns the encoded size of the resource before and after the change.
func (c *groupedChange) size() string {
	switch {
	case c.Before == nil && c.After == nil:
		return "-"
	case c.Before == nil:
		return humanize.Bytes(c.After.Bytes)
	case c.After == nil || c.Before.Bytes == c.After.Bytes:
		return humanize.Bytes(c.Before.Bytes)
	default:
		return humanize.Bytes(c.Before.Bytes) + " -> " + humanize.Bytes(c.After.Bytes)
	}
}

// sign maps the kind of a change to the sign that is printed for it.
var sign = map[string]string{"added": "+", "changed": "~", "removed": "-"}

// printRolloutDiff writes a table with a row for each changed resource, and the totals.
func printRolloutDiff(w io.Writer, diff admin.RolloutDiff) error {
	if len(diff.Changes) == 0 {
		_, err := fmt.Fprintln(w, "no changes")
		return err
	}
	changes, origins := groupChanges(diff.Changes)
	t, counts := &table{cli.Table{Wide: true}}, make(map[string]int)
	for _, c := range changes {
		counts[c.Change]++
		cells := []any{sign[c.Change] + " " + cli.ShortType(c.TypeURL), nameOf(c.RolloutChange), c.size(), c.inGroups()}
		if origins > 1 {
			cells = append(cells, c.Origin)
		}
		t.Row(cells...)
	}
	t.Row()
	t.Row(fmt.Sprintf("%d added, %d changed, %d removed", counts["added"], counts["changed"], counts["removed"]))
	return t.Print(w)
}

// printContents writes a unified diff of JSON for each change, with headings for the contents before and after. diff
// needs bodies, which the relay returns only if the request has a name.
func printContents(w io.Writer, diff admin.RolloutDiff, headBefore, headAfter string) error {
	changes, _ := groupChanges(diff.Changes)
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s %s %s (origin %s, %s)\n", sign[c.Change], cli.ShortType(c.TypeURL), cli.Printable(nameOf(c.RolloutChange)), cli.Printable(c.Origin), c.inGroups())
		before, shownBefore := contentText(c.Before, diff.Bodies)
		after, shownAfter := contentText(c.After, diff.Bodies)
		text := udiff.Unified(headBefore+versionOf(c.Before), headAfter+versionOf(c.After), before, after)
		switch {
		case !shownBefore || !shownAfter:
			text = "(the content is not shown)\n"
		case text == "":
			text = "(only redacted fields differ)\n"
		}
		b.WriteString(cli.Escape(text, "\n"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// versionOf returns the version of a content as a suffix for a heading of a diff. A nil content has none.
func versionOf(c *admin.RolloutContent) string {
	if c == nil {
		return ": none"
	}
	return ": version " + c.Version
}

// contentText returns a content as indented JSON, and true. For a nil content it returns no text and true. For a
// content that the relay does not disclose, such as a Secret, it returns false.
func contentText(c *admin.RolloutContent, bodies map[string]json.RawMessage) (text string, shown bool) {
	if c == nil {
		return "", true
	}
	body, shown := bodies[c.SHA256]
	var out bytes.Buffer
	if json.Indent(&out, body, "", "  ") != nil {
		return "", false
	}
	return out.String() + "\n", shown
}
