# What the platform refuses, whatever an organisation says. The engine asks for deny, labels and, for a tool call,
# tool_deny; a set that is undefined refuses. Nothing here reads input.org.settings: the two stages are
# kept apart so that the engine can join them and settings can only narrow.
#
# A refusal asks "not <rule that says what must hold>", so that a value that is missing refuses. It has to be a rule: the
# compiler moves a reference inside "not f(input.x)" out of the negation, and a missing value would then let pass. For the
# same reason what goes into a message has a default.
package gateway.platform

deny contains {
	"code": "org_suspended",
	"message": "This organisation is suspended. An owner of the organisation can settle what is due to reactivate it.",
} if {
	input.org.billingStatus == "suspended"
}

deny contains {
	"code": "billing_unknown",
	"message": "The billing status of this organisation is not set up. Ask the operators of this gateway to complete it.",
} if {
	not billing_known
}

billing_known if input.org.billingStatus == "paying"

billing_known if input.org.billingStatus == "lingering"

billing_known if input.org.billingStatus == "suspended"

# Lingering organisations have no key of ours to spend, and none of their own is to be spent by accident.
deny contains {
	"code": "byok_only",
	"message": "This organisation works with personal keys only. Add your own key for this provider under Keys.",
} if {
	input.org.billingStatus == "lingering"
	not personal_key
}

personal_key if input.request.keySource == "user-byok"

deny contains {
	"code": "role_required",
	"message": "You have no role in this organisation. Ask one of its administrators to give you one.",
} if {
	not has_role
}

has_role if input.user.tier == "viewer"

has_role if input.user.tier == "user"

has_role if input.user.tier == "admin"

labels contains "acting_for" if input.user.actingFor != null

tool_deny contains {
	"code": "tier_required",
	"message": sprintf("%q needs %s access, and you have %s. Ask an administrator of your organisation.", [capability, needed, had]),
} if {
	not tier_suffices
}

# One rule per pair, which the compiler indexes; a capability that declares no tier has no pair, so nobody's suffices.
tier_suffices if {
	input.capability.tier == "viewer"
	has_role
}

tier_suffices if {
	input.capability.tier == "user"
	input.user.tier == "user"
}

tier_suffices if {
	input.capability.tier == "user"
	input.user.tier == "admin"
}

tier_suffices if {
	input.capability.tier == "admin"
	input.user.tier == "admin"
}

default capability := "this capability"

capability := input.capability.name

default needed := "another"

needed := input.capability.tier

default had := "none"

had := input.user.tier

# Nearly every question is an ordinary one, to which nothing above has anything to say. These are asked first, because one rule is
# found sooner than six; where they do not hold, the sets above are asked. They are no more than a shorter way to the same answer: a
# test tries them against the sets on every question that can be told apart here.
chat_clear if {
	input.org.billingStatus == "paying"
	input.user.actingFor == null
	input.user.tier in {"viewer", "user", "admin"}
}

tool_clear if {
	input.org.billingStatus == "paying"
	input.capability.tier == "viewer"
	input.user.actingFor == null
	input.user.tier in {"viewer", "user", "admin"}
}

tool_clear if {
	input.org.billingStatus == "paying"
	input.capability.tier == "user"
	input.user.actingFor == null
	input.user.tier in {"user", "admin"}
}

tool_clear if {
	input.org.billingStatus == "paying"
	input.capability.tier == "admin"
	input.user.actingFor == null
	input.user.tier == "admin"
}
