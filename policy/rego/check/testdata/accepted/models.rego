package org.policy

cheap := {"claude-haiku-4-5", "gpt-5-mini"}

strong := {"claude-sonnet-4-6", "gpt-5"}

default allowed_models := {"claude-haiku-4-5", "gpt-5-mini"}

allowed_models := cheap | strong if input.user.tier in {"user", "admin"}

limits := {"max_tokens": 8192} if {
	input.user.tier == "admin"
} else := {"max_tokens": 4096} if {
	input.user.tier == "user"
} else := {"max_tokens": 1024}
