# Viewers change nothing.
package org.policy

disabled_capabilities contains name if {
	input.user.tier == "viewer"
	some name, capability in input.capabilities
	capability.kind == "mutate"
}

tool_deny contains {
	"code": "viewers_read_only",
	"message": "Your role can look at things and change nothing. Ask an administrator for another role.",
} if {
	input.user.tier == "viewer"
	input.capability.kind == "mutate"
}
