package authz

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/humanize"
)

// version is the required value of the field version.
const version = "1"

// maxNameBytes is the maximum length of the name of a rule, which is part of error messages.
const maxNameBytes = 64

// Parse parses the content of a file of rules. The error joins one line per mistake; each begins with the name of the
// file and the line number.
func Parse(file string, data []byte) (*Policy, error) {
	root, err := document(data)
	r := &reader{file: file}
	if err != nil {
		return nil, r.syntax(err)
	}
	policy := &Policy{operators: make(map[Permission][]identityPattern)}
	names := map[string]bool{}
	found := r.mapping(root, "the file", map[string]func(*yaml.Node){
		"version": func(n *yaml.Node) {
			if n.Value != version {
				r.fail(n, "version %s: allowed: %s", humanize.Quote(n.Value), version)
			}
		},
		"rules": func(n *yaml.Node) {
			for _, item := range r.list(n, "rules") {
				rule := r.rule(item)
				if names[rule.name] && rule.name != "" {
					r.fail(item, "rule %s: another rule has this name", humanize.Quote(rule.name))
				}
				names[rule.name] = true
				policy.rules = append(policy.rules, rule)
			}
		},
		"operators":  func(n *yaml.Node) { r.operators(n, policy.operators) },
		string(Peer): func(n *yaml.Node) { policy.operators[Peer] = r.certified(n, string(Peer), "a peer") },
		string(Take): func(n *yaml.Node) { r.snapshots(n, policy.operators) },
	})
	if root.Kind == yaml.MappingNode {
		for _, field := range []string{"version", "rules"} {
			if !found[field] {
				r.fail(root, "%s is missing", field)
			}
		}
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return policy, nil
}

// document returns the root node of the YAML document. A file without a document, or with several, is an error.
func document(data []byte) (*yaml.Node, error) {
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, errors.New("line 1: the file is empty")
	case err != nil:
		return nil, err
	}
	switch err := d.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document begins: one is allowed", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return doc.Content[0], nil
}

// A reader parses a file and collects all errors instead of stopping at the first one.
type reader struct {
	file string // name for messages
	errs []error
}

// fail adds an error at the position of a node.
func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d:%d: %s", r.file, n.Line, n.Column, fmt.Sprintf(format, args...)))
}

// position matches the line number in an error of the YAML parser.
var position = regexp.MustCompile(`line (\d+): `)

// syntax returns an error of the YAML parser in the format of fail, with the line moved to the front.
func (r *reader) syntax(err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), "1"
	if at := position.FindStringSubmatchIndex(text); at != nil {
		text, line = text[:at[0]]+text[at[1]:], text[at[2]:at[3]]
	}
	if strings.Contains(text, "alphabetic or numeric character") {
		text += "; a text that begins with * has to be in quotes"
	}
	return fmt.Errorf("%s:%s: %s", r.file, line, text)
}

// resolve returns the target of an alias, and any other node unchanged.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// mapping calls the function of each field that the object contains, and returns the names of these fields. Unknown and
// duplicate fields are errors. The argument what describes the object in errors.
func (r *reader) mapping(n *yaml.Node, what string, fields map[string]func(*yaml.Node)) map[string]bool {
	found := map[string]bool{}
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s is not an object", what)
		return found
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		read := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || read == nil:
			r.fail(key, "%s has no field %s; allowed: %s", what, humanize.Quote(key.Value), strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case found[key.Value]:
			r.fail(key, "%s has %s twice", what, key.Value)
		default:
			found[key.Value] = true
			read(value)
		}
	}
	return found
}

// list returns the items of a list. An empty list is an error, since it could be read as no restriction.
func (r *reader) list(n *yaml.Node, what string) (items []*yaml.Node) {
	switch {
	case n.Kind != yaml.SequenceNode:
		r.fail(n, "%s is not a list", what)
		return nil
	case len(n.Content) == 0:
		r.fail(n, "%s is empty", what)
		return nil
	}
	for _, item := range n.Content {
		items = append(items, resolve(item))
	}
	return items
}

// texts calls parse with each string of a list and adds the errors that it returns.
func (r *reader) texts(n *yaml.Node, what string, parse func(text string) error) {
	for _, item := range r.list(n, what) {
		text, ok := r.text(item, what)
		if !ok {
			continue
		}
		if err := parse(text); err != nil {
			r.fail(item, "%s: %s: %s", what, humanize.Quote(text), err)
		}
	}
}

// text returns the value of a string node. Other scalars, such as numbers and null, are errors.
func (r *reader) text(n *yaml.Node, what string) (text string, ok bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.fail(n, "%s: this is not text", what)
	case n.Tag != "!!str":
		r.fail(n, "%s: %s is not text: it has to be in quotes", what, n.Value)
	case strings.ContainsFunc(n.Value, unicode.IsControl):
		r.fail(n, "%s: %s has a control character", what, humanize.Quote(n.Value))
	default:
		return n.Value, true
	}
	return "", false
}

// rule parses a rule. It returns what could be parsed even if there are errors.
func (r *reader) rule(n *yaml.Node) (into rule) {
	within := func(field string) string { return fmt.Sprintf("rule %s: %s", humanize.Quote(into.name), field) }
	var used []*pattern
	patterns := func(field string, to *[]pattern, check func(string) error) func(*yaml.Node) {
		return func(n *yaml.Node) {
			r.texts(n, within(field), func(text string) error {
				if err := check(text); err != nil {
					return err
				}
				p, err := parsePattern(text, stops)
				*to = append(*to, p)
				return err
			})
			for i := range *to {
				used = append(used, &(*to)[i])
			}
		}
	}
	r.name(n, &into)
	found := r.mapping(n, ruleOf(into.name), map[string]func(*yaml.Node){
		"name": func(*yaml.Node) {},
		"identities": func(n *yaml.Node) {
			r.texts(n, within("identities"), func(text string) error {
				p, err := parseIdentity(text)
				into.identities = append(into.identities, p)
				return err
			})
		},
		"node": func(n *yaml.Node) {
			fields := map[string]func(*yaml.Node){}
			for _, field := range fieldsIn(n) {
				fields[field] = func(n *yaml.Node) {
					f := fieldPatterns{field: field}
					patterns("node."+field, &f.patterns, func(string) error { return nil })(n)
					into.node = append(into.node, f)
				}
			}
			if found := r.mapping(n, within("node"), fields); n.Kind == yaml.MappingNode && len(found) == 0 && len(n.Content) == 0 {
				r.fail(n, "%s is empty", within("node"))
			}
		},
		"types": func(n *yaml.Node) {
			r.texts(n, within("types"), func(text string) error {
				typeURL, err := parseType(text)
				into.types = append(into.types, typeURL)
				return err
			})
		},
		"secrets": patterns("secrets", &into.secrets, checkSecret),
		"xdstp":   patterns("xdstp", &into.xdstp, checkXDSTP),
	})
	if resolve(n).Kind == yaml.MappingNode && !found["identities"] {
		r.fail(n, "%s has no identities", ruleOf(into.name))
	}
	r.checkBound(n, &into, used)
	return into
}

// ruleOf names a rule in errors.
func ruleOf(name string) string { return "rule " + humanize.Quote(name) }

// name parses the name of a rule before the other fields, since their errors contain it.
func (r *reader) name(n *yaml.Node, into *rule) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "name" {
			continue
		}
		value := resolve(n.Content[i+1])
		text, ok := r.text(value, "name")
		if ok && (text == "" || len(text) > maxNameBytes) {
			r.fail(value, "name %s: 1 to %d bytes are allowed", humanize.Quote(text), maxNameBytes)
		}
		into.name = text
		return
	}
	r.fail(n, "a rule has no name")
}

// fieldsIn returns the names that are valid in the object node: the fixed fields of a Node, and each metadata path that
// the object contains.
func fieldsIn(n *yaml.Node) []string {
	fields := slices.Clone(nodeFields)
	for i := 0; i+1 < len(n.Content); i += 2 {
		path, ok := strings.CutPrefix(n.Content[i].Value, metadataPrefix)
		if ok && !slices.Contains(strings.Split(path, "."), "") {
			fields = append(fields, n.Content[i].Value)
		}
	}
	return fields
}

// checkBound adds an error for each capture of a pattern that an identity of the rule lacks. An unbound capture would
// match any value.
func (r *reader) checkBound(n *yaml.Node, in *rule, used []*pattern) {
	for _, p := range used {
		for _, name := range p.captures() {
			for i := range in.identities {
				if id := &in.identities[i]; !slices.Contains(id.captures(), name) {
					r.fail(n, "%s: %s has {%s}, and the identity %s has not", ruleOf(in.name), humanize.Quote(p.text), name, humanize.Quote(id.String()))
				}
			}
		}
	}
}

// parseType returns the type URL for a short name, such as cds, or for a type URL.
func parseType(text string) (string, error) {
	typeURL, ok := schema.TypeURLFor(text)
	if !ok {
		host, name, _ := strings.Cut(text, "/")
		if host == "" || !protoreflect.FullName(name).IsValid() {
			return "", errors.New("it is neither a short name, such as cds, nor a type URL")
		}
		typeURL = text
	}
	if wire.IsSecret(typeURL) {
		return "", errors.New("it is the type of Secrets, which are allowed by their names, in secrets")
	}
	return typeURL, nil
}

// checkSecret returns an error for a pattern that matches no name of a Secret.
func checkSecret(text string) error {
	if text == "" {
		return errors.New("no Secret has an empty name")
	}
	return checkCanonical(text)
}

// checkXDSTP returns an error for a pattern that matches no xdstp name.
func checkXDSTP(text string) error {
	if !strings.HasPrefix(text, "xdstp://") {
		return errors.New("it does not begin with xdstp://")
	}
	return checkCanonical(text)
}

// checkCanonical returns an error for a pattern of xdstp names that is not in canonical form, or that lacks a part of
// such a name. It would match nothing, since names are compared in canonical form.
func checkCanonical(text string) error {
	rest, ok := strings.CutPrefix(text, "xdstp://")
	authority, path, _ := strings.Cut(rest, "/")
	resourceType, id, _ := strings.Cut(path, "/")
	if !ok || strings.Contains(authority+resourceType, "**") { // ** may match several parts of the name
		return nil
	}
	if strings.ContainsAny(resourceType, "*{}") {
		resourceType = "any.Type"
	}
	plain := strings.NewReplacer("{", "", "}", "").Replace("xdstp://" + authority + "/" + resourceType + "/" + id)
	canonical, err := wire.CanonicalName(plain)
	if err == nil && canonical != plain {
		err = fmt.Errorf("no name is spelled so: the canonical form is %s", humanize.Quote(canonical))
	}
	return err
}
