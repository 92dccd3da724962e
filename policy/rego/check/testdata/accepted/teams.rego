package org.policy

teams := {
	"design": {"members": {"ana@acme.example", "bo@acme.example"}, "projects": ["deck", "site"], "models": ["claude-sonnet-4-6"]},
	"legal": {"members": {"cy@acme.example"}, "projects": ["contract"], "models": ["claude-opus-4-1", "claude-sonnet-4-6"]},
	"sales": {"members": {"di@acme.example", "ed@acme.example"}, "projects": ["deck", "offer"], "models": ["claude-haiku-4-5"]},
}

mine := {name | some name, team in teams; input.user.email in team.members}

projects := {kind | some name in mine; some kind in teams[name].projects}

deny contains {
	"code": "not_your_team",
	"message": sprintf("Projects of the kind %q belong to another team; yours are %s.", [input.request.projectKind, concat(", ", sort(projects))]),
} if {
	input.request.projectKind != ""
	not member
}

member if input.request.projectKind in projects

allowed_models := {model | some name in mine; some model in teams[name].models}

labels contains sprintf("team:%s", [name]) if some name in mine
