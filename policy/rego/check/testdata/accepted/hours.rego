package org.policy

weekend := {"Saturday", "Sunday"}

working if {
	not input.time.weekday in weekend
	input.time.hour >= 7
	input.time.hour < 20
}

deny contains {
	"code": "outside_hours",
	"message": sprintf("Changes are possible from 7 to 20 o'clock on working days; it is %02d:%02d.", [input.time.hour, input.time.minuteOfDay % 60]),
} if {
	not working
	input.user.tier != "admin"
}
