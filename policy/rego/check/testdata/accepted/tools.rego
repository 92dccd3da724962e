package org.policy

tool_deny contains {
	"code": "too_many_rows",
	"message": sprintf("A call may change at most %d rows, this one changes %d.", [max_rows, rows]),
} if {
	input.capability.kind == "mutate"
	rows > max_rows
}

max_rows := 50

default rows := 0

rows := count(input.capability.args.rows)

tool_require_approval contains input.capability.name if {
	input.capability.kind == "mutate"
	external
}

external if {
	some recipient in input.capability.args.recipients
	not endswith(recipient, "@acme.example")
}

tool_deny contains {"code": "loop", "message": "This turn has made too many calls. Start a new one."} if {
	input.capability.step > 40
}
