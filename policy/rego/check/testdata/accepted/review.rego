package org.policy

sensitive := ["publish", "send", "delete", "export", "invite"]

tool_require_approval contains input.capability.name if {
	some verb in sensitive
	endswith(input.capability.name, sprintf(".%s", [verb]))
}

tool_require_approval contains input.capability.name if {
	input.capability.origin == "model"
	input.capability.confirms
	input.conversation.chars > 100000
}

tool_deny contains {"code": "suspicious_url", "message": "The call names an address outside of our sites."} if {
	some url in urls
	not allowed_url(url)
}

urls := {value |
	some value in input.capability.args
	is_string(value)
	regex.match(`^https?://`, value)
}

allowed_url(url) if {
	some site in ["https://acme.example/", "https://docs.acme.example/"]
	startswith(url, site)
}
