package nodegroup

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Member returns a Node of the group with a key that [Sort] made: it has only the fields of the key. ok is false for any
// other key.
func Member(key string, groupBy []string) (n *corepb.Node, ok bool) {
	n = new(corepb.Node)
	rest := key
	for _, field := range groupBy {
		value, found := strings.CutPrefix(rest, field+"=")
		if !found {
			return nil, false
		}
		length, ok := setField(n, field, value)
		if !ok {
			return nil, false
		}
		rest = strings.TrimPrefix(value[length:], ",")
	}
	for feature := range strings.SplitSeq(rest, ",") {
		if slices.Contains(ContentFeatures, feature) {
			n.ClientFeatures = append(n.ClientFeatures, feature)
		}
	}
	got, _ := Sort(n, new(corepb.Node), groupBy)
	return n, got == key
}

// setField sets a field of a Node to the value at the beginning of a text, and returns the length of the value in it.
func setField(n *corepb.Node, field, text string) (length int, ok bool) {
	if path, is := strings.CutPrefix(field, "metadata."); is {
		return setMetadata(n, strings.Split(path, "."), text)
	}
	raw := plainValue(text)
	value := raw
	if unquoted, err := strconv.Unquote(raw); err == nil {
		value = unquoted
	}
	if field == "user_agent_version" {
		setVersion(n, value)
	} else {
		setText(n, field, value)
	}
	return len(raw), true
}

// setVersion sets the major version of a Node, as text or as the number of a build.
func setVersion(n *corepb.Node, value string) {
	if major, err := strconv.ParseUint(value, 10, 32); err == nil {
		build := new(corepb.BuildVersion)
		fields := build.ProtoReflect().Descriptor().Fields()
		build.ProtoReflect().Mutable(fields.ByName("version")) // sets an empty one
		build.Version.MajorNumber = uint32(major)
		n.UserAgentVersionType = &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: build}
		return
	}
	n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: strings.TrimPrefix(value, "v")}
}

// setMetadata sets the metadata at a path to the JSON value at the beginning of a text; none if there is no value.
func setMetadata(n *corepb.Node, path []string, text string) (length int, ok bool) {
	if text == "" || text[0] == ',' {
		return 0, true
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	var value any
	if decoder.Decode(&value) != nil {
		return 0, false
	}
	v, err := structpb.NewValue(value)
	if err != nil {
		return 0, false
	}
	if n.Metadata == nil {
		n.Metadata = new(structpb.Struct)
	}
	put(n.Metadata, path, v)
	return int(decoder.InputOffset()), true
}
