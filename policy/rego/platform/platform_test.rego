package gateway.platform_test

import data.gateway.platform

person := {
	"org": {
		"billingStatus": "paying",
		"settings": {"disabled": {}, "modelAllowed": true},
	},
	"user": {"tier": "user", "actingFor": null},
	"request": {"keySource": "org", "model": "claude-sonnet-4-6"},
}

call := object.union(person, {"capability": {"name": "slide.edit", "tier": "user"}})

codes(reasons) := {r.code | some r in reasons}

test_nothing_objects if {
	platform.deny == set() with input as person
	platform.tool_deny == set() with input as call
	platform.labels == set() with input as person
}

test_suspended if {
	codes(platform.deny) == {"org_suspended"} with input as object.union(person, {"org": {"billingStatus": "suspended"}})
}

test_unknown_billing if {
	codes(platform.deny) == {"billing_unknown"} with input as object.union(person, {"org": {"billingStatus": "frozen"}})
	codes(platform.deny) == {"billing_unknown"} with input as object.union(person, {"org": {"billingStatus": ""}})
}

test_lingering_needs_a_personal_key if {
	lingering := object.union(person, {"org": {"billingStatus": "lingering"}})
	codes(platform.deny) == {"byok_only"} with input as lingering
	codes(platform.deny) == {"byok_only"} with input as object.union(lingering, {"request": {"keySource": "none"}})
	platform.deny == set() with input as object.union(lingering, {"request": {"keySource": "user-byok"}})
}

test_no_role if {
	codes(platform.deny) == {"role_required"} with input as object.union(person, {"user": {"tier": "none"}})
}

test_an_empty_input_is_refused if {
	codes(platform.deny) == {"billing_unknown", "role_required"} with input as {}
	codes(platform.deny) == {"byok_only", "role_required"} with input as {"org": {"billingStatus": "lingering"}}
	codes(platform.tool_deny) == {"tier_required"} with input as {}
	codes(platform.tool_deny) == {"tier_required"} with input as {"user": {"tier": "admin"}}
	codes(platform.tool_deny) == {"tier_required"} with input as {"capability": {"name": "x", "tier": "viewer"}}
}

test_acting_for_is_labelled if {
	platform.labels == {"acting_for"} with input as object.union(person, {"user": {"actingFor": "acme.example"}})
}

test_tiers if {
	every user, suffices in {
		"none": set(),
		"viewer": {"viewer"},
		"user": {"viewer", "user"},
		"admin": {"viewer", "user", "admin"},
	} {
		every tier in {"none", "viewer", "user", "admin"} {
			refused := count(platform.tool_deny) > 0 with input as object.union(call, {"user": {"tier": user}, "capability": {"tier": tier}})
			refused == (not_in(tier, suffices))
		}
	}
}

not_in(x, xs) := true if not x in xs

not_in(x, xs) := false if x in xs
