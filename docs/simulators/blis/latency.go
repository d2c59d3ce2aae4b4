//go:build blis

package main

import (
	"math"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/steptable"
)

// Steps over which a mean goes, about.
const remembered = 30

// TableLatency is a LatencyModel of BLIS on a table of step times.
type TableLatency struct {
	table *steptable.Table

	// The mean time of the last steps, microseconds, and the requests in the last.
	meanUs   float64
	requests float64
}

// NewTableLatency reads the table in a folder.
func NewTableLatency(folder string) (*TableLatency, error) {
	table, err := steptable.Load(folder)
	if err != nil {
		return nil, err
	}
	return &TableLatency{table: table}, nil
}

// StepTime is the table's time of the batch that BLIS formed, whole microseconds.
//
// BLIS counts a prompt's progress after its step, so a prompt whose prefix is in the cache is taken
// for one without a context in its first step.
func (m *TableLatency) StepTime(batch []*sim.Request) int64 {
	var contexts []float64
	var chunks []steptable.Chunk
	for _, req := range batch {
		before := float64(req.ProgressIndex)
		if req.ProgressIndex < req.InputLen() {
			chunks = append(chunks, steptable.Chunk{New: float64(req.NumNewTokens), Cached: before})
		} else {
			// A token attends to itself too.
			contexts = append(contexts, before+1)
		}
	}
	if len(batch) == 0 {
		return 1
	}
	us := m.table.Step(contexts, chunks)
	if m.meanUs == 0 {
		m.meanUs = us
	}
	m.meanUs += (us - m.meanUs) / remembered
	m.requests = float64(len(batch))
	return int64(math.Round(us))
}

// QueueingTime is all that a request spends outside of steps, microseconds.
//
// BLIS has no steps that are formed ahead, so it is the time of the last step for each of them. The
// output is here as well: BLIS would add it to every gap between tokens.
func (m *TableLatency) QueueingTime(req *sim.Request) int64 {
	outside := m.table.Outside
	seconds := outside.FrontEndS + outside.FrontEndSEachPromptToken*float64(req.InputLen())
	seconds += outside.OutputSEachRequest * m.requests
	steps := outside.StepsAhead + outside.HandoverSteps
	return int64(math.Round(max(1e6*seconds+steps*m.meanUs, 0)))
}

// OutputTokenProcessingTime is zero: the engine goes on meanwhile.
func (m *TableLatency) OutputTokenProcessingTime() int64 { return 0 }

// PostDecodeFixedOverhead is zero: physim knows of none.
func (m *TableLatency) PostDecodeFixedOverhead() int64 { return 0 }
