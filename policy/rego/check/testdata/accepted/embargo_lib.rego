package org.policy.lib

domains := {"acme.example", "acme.contractors.example"}

default domain := ""

domain := lower(parts[count(parts) - 1]) if {
	parts := split(input.user.email, "@")
	count(parts) > 1
}

own_domain if domain in domains
