package org.policy_test

import data.org.policy

test_viewer if policy.limits.max_tokens == 1024 with input as {"user": {"tier": "viewer"}}

test_user if policy.limits.max_tokens == 8192 with input as {"user": {"tier": "user"}}
