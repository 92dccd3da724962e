package org.policy

finance := {"invoice", "payroll", "ledger"}

redactions contains {"rule": "iban", "action": "hash", "applies_to": ["prompt", "tool_args"]} if {
	input.request.projectKind in finance
}

redactions contains {"rule": rule, "action": "remove", "applies_to": ["prompt"]} if {
	input.request.provider != "anthropic"
	some rule in ["email", "phone", "person"]
}

deny contains {"code": "images_abroad", "message": "Images may only go to our own provider."} if {
	input.request.hasImages
	input.request.provider != "anthropic"
}
