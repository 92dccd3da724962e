package org.policy

disabled_capabilities contains name if {
	input.user.tier == "viewer"
	some name, capability in input.capabilities
	capability.kind == "mutate"
}

disabled_capabilities contains name if {
	some name, _ in input.capabilities
	startswith(name, "browser.")
}

disabled_capabilities contains name if {
	input.user.role != "org_owner"
	some name, _ in input.capabilities
	glob.match("*.delete", ["."], name)
}
