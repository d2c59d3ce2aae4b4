// Package steptable reads a table of step times that physim wrote as JSON.
//
// A folder holds table.json, metadata.json and look_ups.json; the last has ten look-ups with their
// answers, against which steptable_test.go holds this reader.
package steptable

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// firstCached is how many of a further prompt's tokens in the KV cache have another cost than the
// rest of them.
const firstCached = 576

var axisNames = [4]string{"decode_requests", "decode_context", "prefill_tokens", "prefill_context"}

// Outside is what a request spends outside of steps.
type Outside struct {
	// FrontEndS is the time before the queue, seconds.
	FrontEndS float64 `json:"front_end_s"`
	// FrontEndSEachPromptToken is what each token of a prompt adds to it, seconds.
	FrontEndSEachPromptToken float64 `json:"front_end_s_each_prompt_token"`
	// OutputSEachRequest is what each request of a step adds before its token leaves, seconds.
	OutputSEachRequest float64 `json:"output_s_each_request"`
	// StepsAhead is how many steps are formed before the one that runs has ended.
	StepsAhead float64 `json:"steps_ahead"`
	// HandoverSteps is the fitted part of the handover, in steps.
	HandoverSteps float64 `json:"handover_steps"`
}

// Table has step times at the knots of four axes.
type Table struct {
	Outside Outside

	axes           [4][]float64
	stepUs         []float64
	eachMorePrompt float64
	eachMoreCached float64
	eachMoreBeyond float64
}

// Chunk is what a step computes of a prompt.
type Chunk struct {
	// New tokens, and those that are in the KV cache before them.
	New, Cached float64
}

// Load reads a folder that has table.json and metadata.json.
func Load(folder string) (*Table, error) {
	var content struct {
		Axes   map[string][]float64 `json:"axes"`
		StepUs []float64            `json:"step_us"`
	}
	if err := read(filepath.Join(folder, "table.json"), &content); err != nil {
		return nil, err
	}
	var about struct {
		SchemaVersion  int      `json:"schema_version"`
		EachMorePrompt float64  `json:"each_more_prompt_us"`
		EachMoreCached float64  `json:"each_more_cached_token_us"`
		EachMoreBeyond *float64 `json:"each_more_cached_token_beyond_us"`
		Outside        Outside  `json:"outside_steps"`
	}
	if err := read(filepath.Join(folder, "metadata.json"), &about); err != nil {
		return nil, err
	}
	if about.SchemaVersion != 2 {
		return nil, fmt.Errorf("%s: schema_version %d is unknown", folder, about.SchemaVersion)
	}
	table := &Table{
		Outside:        about.Outside,
		stepUs:         content.StepUs,
		eachMorePrompt: about.EachMorePrompt,
		eachMoreCached: about.EachMoreCached,
		eachMoreBeyond: about.EachMoreCached,
	}
	// Tables written before December 2026 do not tell the two apart.
	if about.EachMoreBeyond != nil {
		table.eachMoreBeyond = *about.EachMoreBeyond
	}
	values := 1
	for axis, name := range axisNames {
		knots := content.Axes[name]
		if len(knots) < 2 {
			return nil, fmt.Errorf("%s: axis %s has fewer than two knots", folder, name)
		}
		for i := 1; i < len(knots); i++ {
			if knots[i] <= knots[i-1] {
				return nil, fmt.Errorf("%s: axis %s does not rise", folder, name)
			}
		}
		table.axes[axis] = knots
		values *= len(knots)
	}
	if len(content.StepUs) != values {
		return nil, fmt.Errorf("%s: step_us has %d values, not %d", folder, len(content.StepUs), values)
	}
	return table, nil
}

// LookUp is the time of a step, microseconds: linear in each axis, constant beyond its ends, but
// for a prefill context below the first knot, where the line through the first two goes on: it
// stands for several prompts.
func (t *Table) LookUp(query [4]float64) float64 {
	var low, high [4]int
	var share [4]float64
	for axis, knots := range t.axes {
		x, last := query[axis], len(knots)-1
		if axis != 3 {
			x = max(x, knots[0])
		}
		x = min(x, knots[last])
		above := sort.Search(len(knots), func(i int) bool { return knots[i] > x })
		low[axis] = min(max(above-1, 0), last-1)
		high[axis] = low[axis] + 1
		from := knots[low[axis]]
		share[axis] = (x - from) / (knots[high[axis]] - from)
	}
	total := 0.0
	for corner := 0; corner < 16; corner++ {
		weight, place := 1.0, 0
		for axis, knots := range t.axes {
			knot := low[axis]
			if corner>>axis&1 == 1 {
				knot = high[axis]
				weight *= share[axis]
			} else {
				weight *= 1 - share[axis]
			}
			place = place*len(knots) + knot
		}
		total += weight * t.stepUs[place]
	}
	return total
}

// MorePrompts is what the prompts of a step but the first add, microseconds, given the tokens that
// all of them have in the KV cache.
func (t *Table) MorePrompts(prompts, cached float64) float64 {
	if prompts <= 1 {
		return 0
	}
	each := cached / prompts
	near := min(each, firstCached)
	return (prompts - 1) * (t.eachMorePrompt + t.eachMoreCached*near + t.eachMoreBeyond*(each-near))
}

// Step is the time of a step, microseconds: contexts of the requests that decode, and the chunks
// of prompts.
func (t *Table) Step(contexts []float64, chunks []Chunk) float64 {
	var query [4]float64
	for _, context := range contexts {
		query[1] += context / float64(len(contexts))
	}
	query[0] = float64(len(contexts))
	pairs, cached := 0.0, 0.0
	for _, chunk := range chunks {
		query[2] += chunk.New
		pairs += chunk.New*chunk.Cached + chunk.New*chunk.New/2
		cached += chunk.Cached
	}
	if query[2] > 0 {
		query[3] = pairs/query[2] - query[2]/2
	}
	return t.LookUp(query) + t.MorePrompts(float64(len(chunks)), cached)
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
