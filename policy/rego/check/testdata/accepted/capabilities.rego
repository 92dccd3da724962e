package org.policy

disabled_capabilities contains name if {
	some name, capability in input.capabilities
	capability.kind == "mutate"
	input.user.tier == "viewer"
}

disabled_capabilities contains name if {
	some name, _ in input.capabilities
	startswith(name, "browser.")
}

disabled_capabilities contains name if {
	some name, _ in input.capabilities
	glob.match("*.delete", ["."], name)
	input.user.role != "org_owner"
}
