# What an organisation says without writing Rego. The engine asks for deny, disabled_capabilities and, for a tool call,
# tool_deny; a set that is undefined refuses. The organisation's globs arrive resolved: input.org.settings.disabled maps each
# capability of this question that is switched off to the glob that did it, and modelAllowed is true when there is no
# restriction.
package gateway.settings

deny contains {
	"code": "model_not_allowed",
	"message": sprintf(
		"The model %q is not one your organisation allows. Choose another model, or ask an administrator to allow it.",
		[model],
	),
} if {
	not model_allowed
}

model_allowed if input.org.settings.modelAllowed

# What stands in a message has a default: a message that is undefined would undo its refusal.
default model := ""

model := substring(input.request.model, 0, 100)

disabled_capabilities := object.keys(input.org.settings.disabled)

tool_deny contains {
	"code": "disabled_by_policy",
	"message": sprintf(
		"%q is switched off in your organisation's settings. An administrator can switch it on again.",
		[input.capability.name],
	),
} if {
	input.org.settings.disabled[input.capability.name]
}
