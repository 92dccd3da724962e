package billing

import "time"

// EventQuery asks for single events of one organisation, newest first: the rows behind a figure of a report.
type EventQuery struct {
	From, To time.Time
	Match    map[string]string // group name of Query and the value it must have; day is not one of them, narrow From and To
	Before   string            // cursor of the previous page, empty: from the newest
	Limit    int               // 1 to 500; 0: 100
}
