# Short answers for viewers, long ones for everybody else.
package org.policy

default limits := {"max_tokens": 8192}

limits := {"max_tokens": 1024} if input.user.tier == "viewer"
