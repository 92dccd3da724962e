# METADATA
# title: Only staff of our own domains
package org.policy

import data.org.policy.lib

deny contains {
	"code": "foreign_domain",
	"message": sprintf("Addresses at %s may not use this gateway.", [lib.domain]),
} if {
	not lib.own_domain
}

labels contains "contractor" if endswith(lib.domain, ".contractors.example")
