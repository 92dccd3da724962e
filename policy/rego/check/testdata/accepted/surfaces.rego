package org.policy

tokens_only_for := {"openai", "anthropic", "gemini"}

deny contains {"code": "token_surface", "message": "Tokens may only be used on the compatible interfaces."} if {
	input.auth.method == "api_token"
	not input.request.surface in tokens_only_for
}

deny contains {"code": "long_conversation", "message": "This conversation is too long. Start a new one."} if {
	input.conversation.messages > 500
}

deny contains {"code": "acting_for", "message": "Members of the operator may only read here."} if {
	input.user.actingFor != null
	input.request.projectKind != "report"
}

labels contains label if {
	some condition, label in {"chat": "chat-turn", "tool": "tool-call"}
	condition == input.action
}

default limits := {}

limits := {"max_tokens": 2000} if input.auth.method == "api_token"
