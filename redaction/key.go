package redaction

import (
	"math"
	"strings"
)

// The key classes: what the parts of keys are made of.
const (
	kDigit uint8 = 1 << iota
	kHex         // a-f
	kLower       // g-z
	kUpper
	kDash
	kUnder
	kDot
	kBase64 // + / =

	kAlnum = kDigit | kHex | kLower | kUpper
	kURL   = kAlnum | kDash | kUnder // base64url
)

var keyClass = func() (t [256]uint8) {
	for c := 0; c < 128; c++ {
		b := byte(c)
		switch {
		case isDigit(b):
			t[c] = kDigit
		case b >= 'a' && b <= 'f':
			t[c] = kHex
		case b >= 'g' && b <= 'z':
			t[c] = kLower
		case b >= 'A' && b <= 'Z':
			t[c] = kUpper
		case b == '-':
			t[c] = kDash
		case b == '_':
			t[c] = kUnder
		case b == '.':
			t[c] = kDot
		case b == '+', b == '/', b == '=':
			t[c] = kBase64
		}
	}
	return t
}()

// keyFormat is one vendor's key: a prefix, what follows it, how many bytes of it, and how random they must look.
type keyFormat struct {
	prefix  string
	of      uint8
	min     int
	max     int     // 0: unbounded
	entropy float64 // least Shannon entropy of the body, bits per byte
}

const (
	judged   = 64  // bytes of an unbounded body whose randomness is judged
	maxAwait = 512 // bytes a stream waits for the end of a key before it swallows the rest as it comes
)

// Entropy floors. Random hex of 32 digits lies near 3.6, random base62 of 20 near 4.0; words and placeholders lie below.
const (
	hexFloor = 2.7
	keyFloor = 3.0
)

// keyFormats are the vendors' formats, from their documentation. The order among formats of the same first byte is the
// order they are tried in: longer prefixes first.
var keyFormats = []keyFormat{
	{"sk-ant-", kURL, 20, 0, keyFloor},                  // Anthropic
	{"sk-proj-", kURL, 20, 0, keyFloor},                 // OpenAI
	{"sk-svcacct-", kURL, 20, 0, keyFloor},              // OpenAI
	{"sk-admin-", kURL, 20, 0, keyFloor},                // OpenAI
	{"sk-or-v1-", kDigit | kHex, 32, 0, hexFloor},       // OpenRouter
	{"sk-lf-", kDigit | kHex | kDash, 36, 36, hexFloor}, // Langfuse
	{"sk-", kAlnum, 20, 0, keyFloor},                    // OpenAI and the many that follow it
	{"sk_live_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"sk_test_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"rk_live_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"rk_test_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"sk_prod_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"rk_prod_", kAlnum, 16, 0, keyFloor},               // Stripe
	{"whsec_", kAlnum | kBase64, 24, 0, keyFloor},       // Stripe, Svix
	{"AKIA", kDigit | kUpper, 16, 16, keyFloor},         // AWS access key ids
	{"ASIA", kDigit | kUpper, 16, 16, keyFloor},         // AWS
	{"ABIA", kDigit | kUpper, 16, 16, keyFloor},         // AWS
	{"ACCA", kDigit | kUpper, 16, 16, keyFloor},         // AWS
	{"A3T", kDigit | kUpper, 17, 17, keyFloor},          // AWS
	{"ABSK", kAlnum | kBase64, 100, 0, keyFloor},        // AWS Bedrock
	{"AIza", kURL, 35, 35, keyFloor},                    // Google API keys
	{"ya29.", kURL | kDot, 20, 0, keyFloor},             // Google OAuth
	{"GOCSPX-", kURL, 28, 28, keyFloor},                 // Google OAuth client secrets
	{"github_pat_", kAlnum | kUnder, 36, 0, keyFloor},
	{"ghp_", kAlnum, 36, 0, keyFloor}, // GitHub
	{"gho_", kAlnum, 36, 0, keyFloor}, // GitHub
	{"ghu_", kAlnum, 36, 0, keyFloor}, // GitHub
	{"ghs_", kAlnum, 36, 0, keyFloor}, // GitHub
	{"ghr_", kAlnum, 36, 0, keyFloor}, // GitHub
	{"glpat-", kURL | kDot, 20, 0, keyFloor},
	{"glptt-", kDigit | kHex, 40, 40, hexFloor},
	{"gldt-", kURL, 20, 0, keyFloor},
	{"glrt-", kURL | kDot, 20, 0, keyFloor},
	{"glcbt-", kURL, 20, 0, keyFloor},
	{"glsoat-", kURL, 20, 0, keyFloor},
	{"glimt-", kURL, 25, 0, keyFloor},
	{"glagent-", kURL, 50, 0, keyFloor},
	{"glft-", kURL, 20, 0, keyFloor},
	{"glffct-", kURL, 20, 0, keyFloor},
	{"gloas-", kURL, 64, 0, keyFloor},
	{"GR1348941", kURL, 20, 0, keyFloor},        // GitLab runner registration
	{"glsa_", kAlnum | kUnder, 41, 0, keyFloor}, // Grafana
	{"glc_", kAlnum | kBase64, 32, 0, keyFloor}, // Grafana
	{"xoxb-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxp-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxa-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxr-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxs-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxo-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxe-", kAlnum | kDash, 20, 0, keyFloor},  // Slack
	{"xoxe.xox", kAlnum | kDash, 40, 0, keyFloor},
	{"xapp-", kAlnum | kDash, 20, 0, keyFloor}, // Slack
	{"npm_", kAlnum, 36, 0, keyFloor},
	{"pypi-", kURL, 50, 0, keyFloor},
	{"rubygems_", kDigit | kHex, 48, 48, hexFloor},
	{"CLOJARS_", kAlnum, 60, 60, keyFloor},
	{"dckr_pat_", kURL, 27, 0, keyFloor},
	{"SG.", kURL | kDot, 60, 70, keyFloor},    // SendGrid
	{"key-", kDigit | kHex, 32, 32, hexFloor}, // Mailgun
	{"pubkey-", kDigit | kHex, 32, 32, hexFloor},
	{"xkeysib-", kDigit | kHex | kLower | kDash, 64, 81, hexFloor}, // Brevo
	{"dop_v1_", kDigit | kHex, 64, 64, hexFloor},                   // DigitalOcean
	{"doo_v1_", kDigit | kHex, 64, 64, hexFloor},                   // DigitalOcean
	{"dor_v1_", kDigit | kHex, 64, 64, hexFloor},                   // DigitalOcean
	{"dp.pt.", kAlnum, 40, 0, keyFloor},                            // Doppler
	{"hf_", kAlnum, 30, 0, keyFloor},                               // Hugging Face
	{"api_org_", kAlnum, 30, 0, keyFloor},                          // Hugging Face
	{"gsk_", kAlnum, 40, 0, keyFloor},                              // Groq
	{"xai-", kAlnum, 60, 0, keyFloor},                              // xAI
	{"pplx-", kAlnum, 40, 0, keyFloor},                             // Perplexity
	{"nvapi-", kURL, 40, 0, keyFloor},                              // NVIDIA
	{"r8_", kAlnum, 37, 37, keyFloor},                              // Replicate
	{"tvly-", kURL, 28, 0, keyFloor},                               // Tavily
	{"lsv2_", kAlnum | kUnder, 32, 0, keyFloor},                    // LangSmith
	{"pcsk_", kAlnum | kUnder, 50, 0, keyFloor},                    // Pinecone
	{"shpat_", kAlnum, 32, 32, hexFloor},                           // Shopify
	{"shpca_", kAlnum, 32, 32, hexFloor},                           // Shopify
	{"shppa_", kAlnum, 32, 32, hexFloor},                           // Shopify
	{"shpss_", kAlnum, 32, 32, hexFloor},                           // Shopify
	{"sq0atp-", kURL, 22, 0, keyFloor},                             // Square
	{"sq0csp-", kURL, 22, 0, keyFloor},                             // Square
	{"EAAA", kURL | kBase64, 56, 64, keyFloor},                     // Square
	{"lin_api_", kAlnum, 40, 0, keyFloor},                          // Linear
	{"figd_", kURL, 40, 0, keyFloor},                               // Figma
	{"gw_", kURL, 32, 0, keyFloor},                                 // this gateway's own access tokens
	{"hvs.", kURL, 24, 0, keyFloor},                                // Vault
	{"hvb.", kURL, 100, 0, keyFloor},                               // Vault
	{"pul-", kDigit | kHex, 40, 40, hexFloor},                      // Pulumi
	{"dapi", kDigit | kHex | kDash, 32, 34, hexFloor},              // Databricks
	{"sbp_", kDigit | kHex, 40, 40, hexFloor},                      // Supabase
	{"sb_secret_", kURL, 31, 0, keyFloor},                          // Supabase
	{"nfp_", kAlnum, 36, 0, keyFloor},                              // Netlify
	{"pscale_tkn_", kURL | kDot | kBase64, 32, 64, keyFloor},       // PlanetScale
	{"pscale_pw_", kURL | kDot | kBase64, 32, 64, keyFloor},        // PlanetScale
	{"pscale_oauth_", kURL | kDot | kBase64, 32, 64, keyFloor},     // PlanetScale
	{"fo1_", kURL, 43, 43, keyFloor},                               // Fly.io
	{"fm1r_", kAlnum | kBase64, 100, 0, keyFloor},                  // Fly.io
	{"fm1a_", kAlnum | kBase64, 100, 0, keyFloor},                  // Fly.io
	{"fm2_", kAlnum | kBase64, 100, 0, keyFloor},                   // Fly.io
	{"ATATT3", kURL | kBase64, 100, 0, keyFloor},                   // Atlassian
	{"ATCTT3", kURL | kBase64, 100, 0, keyFloor},                   // Atlassian
	{"PMAK-", kDigit | kHex | kDash, 59, 59, hexFloor},             // Postman
	{"phx_", kURL, 40, 0, keyFloor},                                // PostHog
	{"phc_", kURL, 40, 0, keyFloor},                                // PostHog
	{"secret_", kAlnum, 43, 43, keyFloor},                          // Notion
	{"ntn_", kAlnum, 40, 0, keyFloor},                              // Notion
	{"sntrys_", kAlnum | kBase64 | kUnder, 60, 0, keyFloor},        // Sentry
	{"sntryu_", kDigit | kHex, 64, 64, hexFloor},                   // Sentry
	{"sgp_", kDigit | kHex | kLower | kUnder, 40, 60, hexFloor},    // Sourcegraph
	{"NRAK-", kDigit | kUpper | kLower | kHex, 27, 27, keyFloor},   // New Relic
	{"NRJS-", kDigit | kHex, 19, 19, hexFloor},                     // New Relic
	{"NRII-", kURL, 32, 32, keyFloor},                              // New Relic
	{"rdme_", kDigit | kHex | kLower, 70, 70, keyFloor},            // ReadMe
	{"shippo_live_", kDigit | kHex, 40, 40, hexFloor},              // Shippo
	{"shippo_test_", kDigit | kHex, 40, 40, hexFloor},              // Shippo
	{"CFPAT-", kURL, 43, 43, keyFloor},                             // Contentful
	{"LTAI", kAlnum, 17, 26, keyFloor},                             // Alibaba Cloud
	{"AGE-SECRET-KEY-1", kDigit | kUpper, 58, 58, keyFloor},
	{"tfp_", kURL | kDot, 59, 59, keyFloor},                // Typeform
	{"ops_eyJ", kAlnum | kBase64, 100, 0, keyFloor},        // 1Password
	{"A3-", kDigit | kUpper | kDash, 32, 40, keyFloor},     // 1Password
	{"pnu_", kAlnum, 36, 36, keyFloor},                     // Prefect
	{"duffel_live_", kURL | kBase64, 43, 43, keyFloor},     // Duffel
	{"duffel_test_", kURL | kBase64, 43, 43, keyFloor},     // Duffel
	{"EZAK", kAlnum, 54, 54, keyFloor},                     // EasyPost
	{"EZTK", kAlnum, 54, 54, keyFloor},                     // EasyPost
	{"FLWSECK_TEST-", kAlnum | kDash, 12, 40, hexFloor},    // Flutterwave
	{"FLWSECK-", kAlnum | kDash, 20, 40, hexFloor},         // Flutterwave
	{"fio-u-", kURL | kBase64, 64, 64, keyFloor},           // Frame.io
	{"ico-", kAlnum, 32, 32, keyFloor},                     // Infracost
	{"dt0c01.", kDigit | kUpper | kDot, 80, 100, keyFloor}, // Dynatrace
	{"SK", kDigit | kHex, 32, 32, hexFloor},                // Twilio
	{"v1.0-", kDigit | kHex | kDash, 140, 180, hexFloor},   // Cloudflare origin CA
	{"HRKU-", kURL, 36, 0, keyFloor},                       // Heroku
	{"pat", kAlnum | kDot, 79, 79, keyFloor},               // Airtable
	{"sl.", kURL, 100, 0, keyFloor},                        // Dropbox
	{"bkua_", kDigit | kHex, 40, 40, hexFloor},             // Buildkite
	{"sdk-", kDigit | kHex | kDash, 36, 36, hexFloor},      // LaunchDarkly
	{"aio_", kAlnum, 28, 28, keyFloor},                     // Adafruit
	{"CCIPAT_", kAlnum | kUnder, 40, 0, keyFloor},          // CircleCI
	{"AKCp", kAlnum, 60, 0, keyFloor},                      // Artifactory
	{"cmVmdGtu", kAlnum, 56, 0, keyFloor},                  // Artifactory reference tokens
	{"sha256~", kURL, 43, 43, keyFloor},                    // OpenShift
}

// keyOf lists, for each first byte, the formats that begin with it.
var keyOf = func() (t [256][]keyFormat) {
	for _, f := range keyFormats {
		t[f.prefix[0]] = append(t[f.prefix[0]], f)
	}
	return t
}()

// keyFirst marks the bytes a JWT or a vendor's key may begin with.
var keyFirst = func() (t [256]bool) {
	for _, f := range keyFormats {
		t[f.prefix[0]] = true
	}
	t['e'] = true
	return t
}()

// keySecond marks, per first byte, the second bytes a JWT or a key may have, so that ordinary words are turned away
// after one look.
var keySecond = func() (t [128][2]uint64) {
	mark := func(p string) { t[p[0]][p[1]>>6] |= 1 << (p[1] & 63) }
	for _, f := range keyFormats {
		mark(f.prefix)
	}
	mark("ey")
	return t
}()

// keyMayStart reports whether a JWT or a vendor's key may start at i.
func keyMayStart(s string, i int) bool {
	if !keyFirst[s[i]] {
		return false
	}
	if i+1 == len(s) {
		return true
	}
	b := s[i+1]
	return b < 128 && keySecond[s[i]&127][b>>6]&(1<<(b&63)) != 0
}

// keyAt decides whether a vendor's key starts at i.
func keyAt(s string, i int, prev byte, more bool) match {
	if isAlnum(prev) {
		return match{}
	}
	formats := keyOf[s[i]]
	for k := range formats {
		if m := formats[k].at(s, i, more); m.v != no {
			return m
		}
	}
	return match{}
}

func (f *keyFormat) at(s string, i int, more bool) match {
	if rest := s[i:]; len(rest) < len(f.prefix) {
		if more && f.prefix[:len(rest)] == rest {
			return match{v: undecided}
		}
		return match{}
	} else if rest[:len(f.prefix)] != f.prefix {
		return match{}
	}
	p := i + len(f.prefix)
	limit := p + max(f.min, judged)
	if f.max > 0 {
		limit = p + f.max + 1
	}
	window := s[:min(len(s), limit)]
	e, growing := extent(window, p, f.of, more || limit < len(s))
	if growing && limit > len(s) {
		return match{v: undecided, strong: true}
	}
	n := e - p
	if n < f.min || f.max > 0 && n > f.max || !random(s[p:e], f.entropy) {
		return match{}
	}
	if growing {
		if e, growing = extent(s, e, f.of, more); growing {
			if e-i < maxAwait {
				return match{v: undecided, strong: true}
			}
			return match{v: open, end: e, keep: f.of}
		}
	}
	return match{v: yes, end: e}
}

// extent returns the end of the stretch of bytes of the given classes at j, and whether more text could lengthen it. A
// dot belongs to the stretch only when another byte of it follows, so that a full stop stays outside.
func extent(s string, j int, of uint8, more bool) (int, bool) {
	for ; j < len(s); j++ {
		c := keyClass[s[j]] & of
		if c == 0 {
			return j, false
		}
		if c == kDot {
			if j+1 == len(s) {
				return j, more
			}
			if n := keyClass[s[j+1]] & of; n == 0 || n == kDot {
				return j, false
			}
		}
	}
	return j, more
}

// random reports whether a key's body looks generated: enough entropy, and digits or both cases, which placeholders such
// as your-key-here lack.
func random(body string, floor float64) bool {
	var count [256]uint8
	var seen uint8
	n := min(len(body), 255)
	for i := range n {
		count[body[i]]++
		seen |= keyClass[body[i]]
	}
	if seen&kDigit == 0 && (seen&kUpper == 0 || seen&(kHex|kLower) == 0) {
		return false
	}
	if strings.HasSuffix(body, "EXAMPLE") {
		return false
	}
	h := 0.0
	for i := range n {
		if c := count[body[i]]; c > 0 {
			p := float64(c) / float64(n)
			h -= p * math.Log2(p)
			count[body[i]] = 0
		}
	}
	return h >= floor
}
