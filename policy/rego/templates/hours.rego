# Expensive models only in working hours.
package org.policy

deny contains {
	"code": "after_hours",
	"message": "This model can be used from 8 to 18 on working days. Use another one until then.",
} if {
	startswith(input.request.model, "claude-opus")
	not working_hours
}

working_hours if {
	input.time.hour >= 8
	input.time.hour < 18
	not input.time.weekday in {"Saturday", "Sunday"}
}
