package org.policy

daily := {"viewer": 20000, "user": 200000, "admin": 1000000}

default limit_today := 0

limit_today := daily[input.user.tier]

deny contains {
	"code": "daily_tokens",
	"message": sprintf("Your organisation has used %d of the %d tokens a %s may start a turn under today.", [input.usage.tokensToday, limit_today, input.user.tier]),
} if {
	input.usage.tokensToday > limit_today
}

deny contains {
	"code": "month_spent",
	"message": sprintf("The budget of this month is spent: %s dollars.", [input.usage.costMonthUsd]),
} if {
	to_number(input.usage.costMonthUsd) >= 500
}
