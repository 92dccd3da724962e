package gateway.settings_test

import data.gateway.settings

question := {
	"org": {
		"billingStatus": "paying",
		"settings": {"disabled": {"slide.edit": "slide.*", "memo.read": "memo.read"}, "modelAllowed": false},
	},
	"user": {"tier": "admin", "actingFor": null},
	"request": {"keySource": "org", "model": "gpt-5"},
	"capability": {"name": "slide.edit", "tier": "viewer"},
}

codes(reasons) := {r.code | some r in reasons}

test_the_model_is_named if {
	some r in settings.deny with input as question
	r.code == "model_not_allowed"
	contains(r.message, `"gpt-5"`)
}

test_a_long_model_is_cut if {
	long := concat("", ["x" | some _ in split(sprintf("%300d", [1]), "")])
	some r in settings.deny with input as object.union(question, {"request": {"model": long}})
	count(r.message) < 300
}

test_an_allowed_model_passes if {
	settings.deny == set() with input as object.union(question, {"org": {"settings": {"modelAllowed": true}}})
}

test_missing_settings_refuse if {
	codes(settings.deny) == {"model_not_allowed"} with input as {}
	not settings.disabled_capabilities with input as {}
}

test_disabled_are_listed if {
	settings.disabled_capabilities == {"slide.edit", "memo.read"} with input as question
}

test_a_disabled_capability_is_refused_to_everyone if {
	codes(settings.tool_deny) == {"disabled_by_policy"} with input as question
	settings.tool_deny == set() with input as object.union(question, {"capability": {"name": "slide.read"}})
}
