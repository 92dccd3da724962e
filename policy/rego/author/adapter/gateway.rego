# The decision document out of what package org.policy contributes, as the gateway makes it from your Rego alone. The rules of
# the platform and the settings of the form come on top and can only refuse more.
package gateway.org

decision := {
	"v": 1,
	"allow": count(deny) == 0,
	"deny": deny,
	"disabled_capabilities": disabled_capabilities,
	"allowed_models": allowed_models,
	"redactions": redactions,
	"limits": limits,
	"require_approval": require_approval,
	"labels": labels,
}

deny contains reason if some reason in data.org.policy.deny

deny contains reason if {
	input.action == "tool"
	some reason in data.org.policy.tool_deny
}

disabled_capabilities contains name if some name in data.org.policy.disabled_capabilities

redactions contains redaction if some redaction in data.org.policy.redactions

require_approval contains name if some name in data.org.policy.tool_require_approval

labels contains label if some label in data.org.policy.labels

default allowed_models := null

allowed_models := data.org.policy.allowed_models

default limits := {}

limits := data.org.policy.limits
