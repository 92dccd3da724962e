package dispatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lossless-group/gateway/chat"
)

// ProposeTool is the tool of our own by which the model proposes calls for a person to choose from. No capability may have its name.
const ProposeTool = "chat_propose"

// maxProposals is how many calls are proposed at once.
const maxProposals = 3

// Proposed is one call that the model proposes.
type Proposed struct {
	Capability string          `json:"capability"`
	Input      json.RawMessage `json:"input"`
	Label      string          `json:"label"`
}

// ProposingTool is ProposeTool over the capabilities that a person may use. Equal capabilities give equal bytes.
func ProposingTool(caps []Capability) (chat.Tool, error) {
	names := make([]string, len(caps))
	for i, c := range caps {
		names[i] = c.Name
	}
	slices.Sort(names)
	enum, err := json.Marshal(names)
	if err != nil {
		return chat.Tool{}, err
	}
	return chat.Tool{
		Name:        ProposeTool,
		Description: "Offer the person one to three calls to choose from, each with the arguments you would use. Nothing runs until they choose. Use it when a request can be met in several ways, reaches further than what was asked, or lacks a detail that matters.",
		InputSchema: json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{"proposals":{"type":"array","minItems":1,"maxItems":%d,"items":{"type":"object","properties":{`+
			`"capability":{"type":"string","enum":%s},"input":{"type":"object","description":"The arguments, as the capability's own schema has them."},`+
			`"label":{"type":"string","minLength":1,"maxLength":200,"description":"One sentence for the person, in their language."}},`+
			`"required":["capability","input","label"],"additionalProperties":false}}},"required":["proposals"],"additionalProperties":false}`, maxProposals, enum)),
	}, nil
}

// proposing is the shape of the tool's arguments, whatever the capabilities.
var proposing = sync.OnceValues(func() (*jsonschema.Schema, error) {
	sch, _, err := compileSchema(json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{"proposals":{"type":"array","minItems":1,"maxItems":%d,"items":{"type":"object",`+
		`"properties":{"capability":{"type":"string"},"input":{"type":"object"},"label":{"type":"string","minLength":1,"maxLength":1000}},`+
		`"required":["capability","input","label"],"additionalProperties":false}}},"required":["proposals"],"additionalProperties":false}`, maxProposals)))
	return sch, err
})

// ParseProposals reads the arguments of ProposeTool. The error is for the model and repeats no value.
func ParseProposals(input json.RawMessage) ([]Proposed, error) {
	sch, err := proposing()
	if err != nil {
		return nil, err
	}
	if _, bad := checkInput(sch, normalInput(input)); bad != "" {
		return nil, errors.New(bad)
	}
	var doc struct {
		Proposals []Proposed `json:"proposals"`
	}
	if err := json.Unmarshal(input, &doc); err != nil {
		return nil, errors.New("the arguments are not valid JSON")
	}
	for i := range doc.Proposals {
		doc.Proposals[i].Label = strings.Join(strings.Fields(doc.Proposals[i].Label), " ")
	}
	return doc.Proposals, nil
}
