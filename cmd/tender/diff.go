package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// maxTexts is the maximum number of resources that tender diff prints as text.
const maxTexts = 100

// newDiffCommand returns the command tender diff.
func newDiffCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff GENERATION|DURATION|pending [TYPE [NAME]]",
		Short: "Print what has changed for clients since an earlier configuration, or what waits",
		Long: "Diff prints the resources that a running relay serves now and that differ from an earlier\n" +
			"configuration: a GENERATION of tender generations, or the one that was served a DURATION\n" +
			"ago, such as 10m. It is the reverse of what tender rollback --dry-run prints.\n\n" +
			"With pending, it prints how the newest configuration of the control plane differs from what\n" +
			"clients receive: the changes that tender pending lists, whatever they wait for.\n\n" +
			"With a NAME, or with --text, it prints the content of each resource as a diff of JSON in\n" +
			"which secrets are redacted. TYPE is a type URL, or a short name such as cds. Endpoints and\n" +
			"Secrets are not part of a generation.",
		Example: "  tender diff 10m\n  tender diff pending --text\n  tender diff 10m --text --group NAMESPACE=shop\n  tender diff 3f2a01c4d9e8 cds web",
		Args:    cobra.RangeArgs(1, 3),
	}
	query := make(url.Values)
	var origin, group string
	var text bool
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	addRolloutOrigin(cmd, &origin)
	cmd.Flags().StringVar(&group, "group", "", "only of the node group with this `key` or name")
	cmd.Flags().BoolVar(&text, "text", false, "print the content of each resource")
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		const waiting = "pending"
		names, read, before, after := []string{"to", "type", "name"}, readSince, args[0], "now"
		if args[0] == waiting {
			names[0], read, before, after = "", readPendingDiff, "now", waiting
		} else if _, _, err := admin.ParseRollback(args[0]); err != nil {
			return cli.UsageError{Cause: fmt.Errorf("%w, or %s", err, waiting)}
		}
		for i, name := range names[:len(args)] {
			if name != "" {
				query.Set(name, args[i])
			}
		}
		query.Set("origin", origin)
		query.Set("group", group)
		text = text || len(args) == 3
		diff, err := read(cmd.Context(), client, query, text)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		return output.Print(w, diff, func() error {
			if text && len(diff.Changes) > 0 {
				return printContents(w, diff, before, after)
			}
			return printRolloutDiff(w, diff)
		})
	})
	return cmd
}

// readPendingDiff requests what the pending changes change for clients. With text, the result has the contents.
func readPendingDiff(ctx context.Context, client *adminClient, query url.Values, text bool) (admin.RolloutDiff, error) {
	return readContents(ctx, client, "/api/v1/pending/diff", query, text)
}

// readContents requests all changes at a path; with text, with their contents.
func readContents(ctx context.Context, client *adminClient, path string, query url.Values, text bool) (admin.RolloutDiff, error) {
	query.Set("limit", fmt.Sprint(manyClients))
	diff, err := readDiff(ctx, client, path, query)
	if err == nil && text && !query.Has("name") {
		diff.Bodies, err = readBodies(ctx, client, path, query, diff.Changes)
	}
	return diff, err
}

// readSince requests what has changed since a generation: the reverse of the changes of a rollback to it. With text, the
// result has the contents.
func readSince(ctx context.Context, client *adminClient, query url.Values, text bool) (admin.RolloutDiff, error) {
	diff, err := readContents(ctx, client, "/api/v1/rollback/diff", query, text)
	if err != nil {
		return diff, err
	}
	reversed := map[string]string{"added": "removed", "removed": "added"}
	for i := range diff.Changes {
		c := &diff.Changes[i]
		c.Before, c.After = c.After, c.Before
		if change := reversed[c.Change]; change != "" {
			c.Change = change
		}
	}
	return diff, nil
}

// readBodies requests the contents of changed resources, which the relay returns for one name at a time.
func readBodies(ctx context.Context, client *adminClient, path string, query url.Values, changes []admin.RolloutChange) (map[string]json.RawMessage, error) {
	bodies, read := make(map[string]json.RawMessage), make(map[[2]string]bool)
	for _, c := range changes {
		if key := [2]string{c.TypeURL, c.Name}; !read[key] {
			read[key] = true
		} else {
			continue
		}
		if len(read) > maxTexts {
			return nil, fmt.Errorf("--text: more than %d resources differ; select some by TYPE, NAME, --group or --origin", maxTexts)
		}
		one := maps.Clone(query)
		one.Del("after")
		one.Set("type", c.TypeURL)
		one.Set("name", c.Name)
		diff, err := readDiff(ctx, client, path, one)
		if err != nil {
			return nil, err
		}
		maps.Copy(bodies, diff.Bodies)
	}
	return bodies, nil
}
