package redaction

import (
	"encoding/base64"
	"hash/crc32"
)

// keyFormat is one vendor's key: a prefix, what follows it, and how random that must look.
type keyFormat struct {
	prefix  string
	parts   outline
	entropy float64                // least Shannon entropy of what follows the prefix, in bits per byte; 0 where the outline says enough
	proven  func(body string) bool // a checksum that makes up for entropy, nil where the vendor has none
}

// format reads a written outline, see outlineOf, that begins with literal text.
func format(text string, entropy float64, proven func(string) bool) keyFormat {
	s := outlineOf(text)
	return keyFormat{s[0].lit, s[1:], entropy, proven}
}

// keyFormats are the vendors' formats that are known by how they begin, from the vendors' documentation and from the public
// rules of secret scanners. The order among formats of the same beginning is the order they are tried in.
var keyFormats = []keyFormat{
	format("sk-ant-<w20,>", keyFloor, nil),                                  // Anthropic
	format("sk-proj-<w20,>", keyFloor, nil),                                 // OpenAI
	format("sk-svcacct-<w20,>", keyFloor, nil),                              // OpenAI
	format("sk-admin-<w20,>", keyFloor, nil),                                // OpenAI
	format("sk-or-v1-<h32,>", hexFloor, nil),                                // OpenRouter
	format("sk-lf-<x8>-<x4>-<x4>-<x4>-<x12>", hexFloor, nil),                // Langfuse
	format("sk-<a20,>", keyFloor, nil),                                      // OpenAI and the many that follow it
	format("sk_live_<a10,>", hexFloor, nil),                                 // Stripe
	format("sk_test_<a10,>", hexFloor, nil),                                 // Stripe
	format("sk_prod_<a10,>", hexFloor, nil),                                 // Stripe
	format("rk_live_<a10,>", hexFloor, nil),                                 // Stripe
	format("rk_test_<a10,>", hexFloor, nil),                                 // Stripe
	format("rk_prod_<a10,>", hexFloor, nil),                                 // Stripe
	format("whsec_<b24,>", keyFloor, nil),                                   // Stripe, Svix
	format("AKIA<u16>", keyFloor, nil),                                      // AWS access key ids
	format("ASIA<u16>", keyFloor, nil),                                      // AWS access key ids
	format("ABIA<u16>", keyFloor, nil),                                      // AWS access key ids
	format("ACCA<u16>", keyFloor, nil),                                      // AWS access key ids
	format("A3T<u17>", keyFloor, nil),                                       // AWS access key ids
	format("ABSK<b100,>", keyFloor, nil),                                    // AWS Bedrock, long-lived
	format("bedrock-api-key-<b20,>", keyFloor, nil),                         // AWS Bedrock, short-lived
	format("AIza<w35>", keyFloor, nil),                                      // Google API keys
	format("ya29.<p20,>", keyFloor, nil),                                    // Google OAuth
	format("GOCSPX-<w28>", keyFloor, nil),                                   // Google OAuth client secrets
	format("1//0<w40,>", keyFloor, nil),                                     // Google OAuth refresh tokens
	format("github_pat_<n36,>", keyFloor, nil),                              // GitHub
	format("ghp_<a36,>", keyFloor, githubSum),                               // GitHub
	format("gho_<a36,>", keyFloor, githubSum),                               // GitHub
	format("ghu_<a36,>", keyFloor, githubSum),                               // GitHub
	format("ghs_<a36,>", keyFloor, githubSum),                               // GitHub
	format("ghr_<a36,>", keyFloor, githubSum),                               // GitHub
	format("glpat-<p20,>", keyFloor, nil),                                   // GitLab
	format("glptt-<h40>", hexFloor, nil),                                    // GitLab
	format("gldt-<w20,>", keyFloor, nil),                                    // GitLab
	format("glrt-<p20,>", keyFloor, nil),                                    // GitLab
	format("glcbt-<w20,>", keyFloor, nil),                                   // GitLab
	format("glsoat-<w20,>", keyFloor, nil),                                  // GitLab
	format("glimt-<w25,>", keyFloor, nil),                                   // GitLab
	format("glagent-<w50,>", keyFloor, nil),                                 // GitLab
	format("glft-<w20,>", keyFloor, nil),                                    // GitLab
	format("glffct-<w20,>", keyFloor, nil),                                  // GitLab
	format("gloas-<w64,>", keyFloor, nil),                                   // GitLab
	format("glrtr-<w20,>", keyFloor, nil),                                   // GitLab
	format("glwt-<w20,>", keyFloor, nil),                                    // GitLab
	format("GR1348941<w20,>", keyFloor, nil),                                // GitLab runner registration
	format("_gitlab_session=<l32>", keyFloor, nil),                          // GitLab session cookies
	format("glsa_<a32>_<x8>", keyFloor, nil),                                // Grafana
	format("glc_<b32,>", keyFloor, nil),                                     // Grafana
	format("eyJrIjoi<a70,>", keyFloor, nil),                                 // Grafana
	format("xoxb-<c17,>", keyFloor, nil),                                    // Slack
	format("xoxp-<c20,>", keyFloor, nil),                                    // Slack
	format("xoxa-<d1>-<d8,14>-<c8,>", 2, nil),                               // Slack
	format("xoxr-<d1>-<d8,14>-<c8,>", 2, nil),                               // Slack
	format("xoxa-<d1>-<c8,>", hexFloor, nil),                                // Slack
	format("xoxr-<d1>-<c8,>", hexFloor, nil),                                // Slack
	format("xoxa-<c10,>", hexFloor, nil),                                    // Slack
	format("xoxr-<c10,>", hexFloor, nil),                                    // Slack
	format("xoxs-<c20,>", keyFloor, nil),                                    // Slack
	format("xoxo-<c20,>", keyFloor, nil),                                    // Slack
	format("xoxe-<c20,>", keyFloor, nil),                                    // Slack
	format("xoxe.xoxb-<d1>-<a60,>", keyFloor, nil),                          // Slack
	format("xoxe.xoxp-<d1>-<a60,>", keyFloor, nil),                          // Slack
	format("xapp-<c20,>", keyFloor, nil),                                    // Slack
	format("npm_<a36,>", keyFloor, githubSum),                               // npm
	format("pypi-<w50,>", keyFloor, nil),                                    // PyPI
	format("rubygems_<h48>", hexFloor, nil),                                 // RubyGems
	format("CLOJARS_<a60>", keyFloor, nil),                                  // Clojars
	format("dckr_pat_<w27,>", keyFloor, nil),                                // Docker
	format("dckr_oat_<w27,>", keyFloor, nil),                                // Docker
	format("SG.<t60,70>", keyFloor, nil),                                    // SendGrid
	format("key-<h32>", hexFloor, nil),                                      // Mailgun
	format("pubkey-<h32>", hexFloor, nil),                                   // Mailgun
	format("xkeysib-<h64>-<a16>", hexFloor, nil),                            // Brevo
	format("xsmtpsib-<h64>-<a16>", hexFloor, nil),                           // Brevo
	format("dop_v1_<h64>", hexFloor, nil),                                   // DigitalOcean
	format("doo_v1_<h64>", hexFloor, nil),                                   // DigitalOcean
	format("dor_v1_<h64>", hexFloor, nil),                                   // DigitalOcean
	format("dp.pt.<p40,>", keyFloor, nil),                                   // Doppler
	format("dp.ct.<p40,>", keyFloor, nil),                                   // Doppler
	format("dp.scim.<p40,>", keyFloor, nil),                                 // Doppler
	format("dp.audit.<p40,>", keyFloor, nil),                                // Doppler
	format("dp.st.<p40,>", keyFloor, nil),                                   // Doppler
	format("hf_<a30,>", keyFloor, nil),                                      // Hugging Face
	format("api_org_<a30,>", keyFloor, nil),                                 // Hugging Face
	format("gsk_<a40,>", keyFloor, nil),                                     // Groq
	format("xai-<a60,>", keyFloor, nil),                                     // xAI
	format("pplx-<a40,>", keyFloor, nil),                                    // Perplexity
	format("nvapi-<w40,>", keyFloor, nil),                                   // NVIDIA
	format("r8_<a37>", keyFloor, nil),                                       // Replicate
	format("tvly-<w28,>", keyFloor, nil),                                    // Tavily
	format("lsv2_<n32,>", keyFloor, nil),                                    // LangSmith
	format("pcsk_<n50,>", keyFloor, nil),                                    // Pinecone
	format("fw_<a22,26>", keyFloor, nil),                                    // Fireworks
	format("csk-<a40,>", keyFloor, nil),                                     // Cerebras
	format("shpat_<x32>", hexFloor, nil),                                    // Shopify
	format("shpca_<x32>", hexFloor, nil),                                    // Shopify
	format("shppa_<x32>", hexFloor, nil),                                    // Shopify
	format("shpss_<x32>", hexFloor, nil),                                    // Shopify
	format("sq0atp-<w22,>", keyFloor, nil),                                  // Square
	format("sq0csp-<w22,>", keyFloor, nil),                                  // Square
	format("EAAA<v22,64>", keyFloor, nil),                                   // Square
	format("EAAM<a100,>", keyFloor, nil),                                    // Facebook pages
	format("EAAC<a100,>", keyFloor, nil),                                    // Facebook pages
	format("lin_api_<a40,>", keyFloor, nil),                                 // Linear
	format("lin_oauth_<a40,>", keyFloor, nil),                               // Linear
	format("figd_<w40,>", keyFloor, nil),                                    // Figma
	format("gw_<w32,>", keyFloor, nil),                                      // this gateway's own access tokens
	format("hvs.<w24,>", keyFloor, nil),                                     // Vault
	format("hvb.<w100,>", keyFloor, nil),                                    // Vault
	format("hvr.<w24,>", keyFloor, nil),                                     // Vault
	format("s.<a24>", 3.5, nil),                                             // Vault, before 1.10
	format("pul-<h40>", hexFloor, nil),                                      // Pulumi
	format("dapi<h32>-<d1>", hexFloor, nil),                                 // Databricks
	format("dapi<h32>", hexFloor, nil),                                      // Databricks
	format("sbp_<h40>", hexFloor, nil),                                      // Supabase
	format("sb_secret_<w31,>", keyFloor, nil),                               // Supabase
	format("nfp_<a36,>", keyFloor, nil),                                     // Netlify
	format("pscale_tkn_<t32,64>", keyFloor, nil),                            // PlanetScale
	format("pscale_pw_<t32,64>", keyFloor, nil),                             // PlanetScale
	format("pscale_oauth_<t32,64>", keyFloor, nil),                          // PlanetScale
	format("fo1_<w43>", keyFloor, nil),                                      // Fly.io
	format("fm1r_<b100,>", keyFloor, nil),                                   // Fly.io
	format("fm1a_<b100,>", keyFloor, nil),                                   // Fly.io
	format("fm2_<b100,>", keyFloor, nil),                                    // Fly.io
	format("ATATT3<v100,>", keyFloor, nil),                                  // Atlassian
	format("ATCTT3<v100,>", keyFloor, nil),                                  // Atlassian
	format("ATBB<a32>", keyFloor, nil),                                      // Bitbucket app passwords
	format("PMAK-<x24>-<x34>", hexFloor, nil),                               // Postman
	format("phx_<w40,>", keyFloor, nil),                                     // PostHog
	format("phc_<w40,>", keyFloor, nil),                                     // PostHog
	format("secret_<a43>", keyFloor, nil),                                   // Notion
	format("ntn_<a40,>", keyFloor, nil),                                     // Notion
	format("sntrys_eyJpYXQiO<b20,400>_<b43>", keyFloor, nil),                // Sentry
	format("sntryu_<h64>", hexFloor, nil),                                   // Sentry
	format("sgp_local_<x40>", hexFloor, nil),                                // Sourcegraph
	format("sgp_<x16>_<x40>", hexFloor, nil),                                // Sourcegraph
	format("sgp_<x40>", hexFloor, nil),                                      // Sourcegraph
	format("NRAK-<a27>", keyFloor, nil),                                     // New Relic
	format("NRJS-<h19>", hexFloor, nil),                                     // New Relic
	format("NRII-<w32>", keyFloor, nil),                                     // New Relic
	format("NRRA-<h42>", hexFloor, nil),                                     // New Relic
	format("rdme_<l70>", keyFloor, nil),                                     // ReadMe
	format("shippo_live_<x40>", hexFloor, nil),                              // Shippo
	format("shippo_test_<x40>", hexFloor, nil),                              // Shippo
	format("CFPAT-<w43>", keyFloor, nil),                                    // Contentful
	format("LTAI<a12,26>", keyFloor, nil),                                   // Alibaba Cloud
	format("AGE-SECRET-KEY-1<u58>", 0, nil),                                 // age
	format("AGE-PLUGIN-<u2,20>-1<u40,>", keyFloor, nil),                     // age plugins
	format("tfp_<t59>", keyFloor, nil),                                      // Typeform
	format("ops_eyJ<b200,>", keyFloor, nil),                                 // 1Password service accounts
	format("A3-<u6>-<u11>-<u5>-<u5>-<u5>", keyFloor, nil),                   // 1Password secret keys
	format("A3-<u6>-<u6>-<u5>-<u5>-<u5>-<u5>", keyFloor, nil),               // 1Password secret keys
	format("pnu_<a36>", keyFloor, nil),                                      // Prefect
	format("pnb_<a36>", keyFloor, nil),                                      // Prefect
	format("duffel_live_<v43>", keyFloor, nil),                              // Duffel
	format("duffel_test_<v43>", keyFloor, nil),                              // Duffel
	format("EZAK<a54>", keyFloor, nil),                                      // EasyPost
	format("EZTK<a54>", keyFloor, nil),                                      // EasyPost
	format("FLWSECK_TEST-<x32>-X", hexFloor, nil),                           // Flutterwave
	format("FLWSECK_TEST-<x12>", hexFloor, nil),                             // Flutterwave
	format("FLWPUBK_TEST-<x32>-X", hexFloor, nil),                           // Flutterwave
	format("FLWSECK-<x32>-X", hexFloor, nil),                                // Flutterwave
	format("FLWPUBK-<x32>-X", hexFloor, nil),                                // Flutterwave
	format("fio-u-<v64>", keyFloor, nil),                                    // Frame.io
	format("ico-<a32>", keyFloor, nil),                                      // Infracost
	format("dt0c01.<a24>.<a64>", keyFloor, nil),                             // Dynatrace
	format("dt0s16.<a8,24>.<a64>", keyFloor, nil),                           // Dynatrace
	format("SK<x32>", hexFloor, nil),                                        // Twilio
	format("v1.0-<h24>-<h146>", hexFloor, nil),                              // Cloudflare origin CA
	format("HRKU-<w36,>", keyFloor, nil),                                    // Heroku
	format("pat<a14>.<h64>", keyFloor, nil),                                 // Airtable
	format("pat.<w22>.<a24>.<a20>", keyFloor, nil),                          // Harness
	format("sat.<w22>.<a24>.<a20>", keyFloor, nil),                          // Harness
	format("sl.<v100,>", keyFloor, nil),                                     // Dropbox
	format("bkua_<h40>", hexFloor, nil),                                     // Buildkite
	format("sdk-<x8>-<x4>-<x4>-<x4>-<x12>", hexFloor, nil),                  // LaunchDarkly
	format("aio_<a28>", keyFloor, nil),                                      // Adafruit
	format("CCIPAT_<n40,>", keyFloor, nil),                                  // CircleCI
	format("AKCp<a60,>", 3.8, nil),                                          // Artifactory
	format("cmVmd<a59>", 3.8, nil),                                          // Artifactory reference tokens
	format("sha256~<w43>", keyFloor, nil),                                   // OpenShift
	format("p8e-<l32>", hexFloor, nil),                                      // Adobe
	format("4b1d<a38>", keyFloor, nil),                                      // ClickHouse Cloud
	format("dnkey-<v79>", keyFloor, nil),                                    // Defined Networking
	format("s-s4t2ud-<h64>", hexFloor, nil),                                 // 42 Intra
	format("s-s4t2af-<h64>", hexFloor, nil),                                 // 42 Intra
	format("API-<u26>", keyFloor, nil),                                      // Octopus Deploy
	format("tk-us-<w48>", keyFloor, nil),                                    // Scalingo
	format("sm_aat_<a16>", hexFloor, nil),                                   // SettleMint
	format("sm_pat_<a16>", hexFloor, nil),                                   // SettleMint
	format("sm_sat_<a16>", hexFloor, nil),                                   // SettleMint
	format("sc_<l5,30>.<l4,6>.acc_<c10,32>.<v30,120>", keyFloor, nil),       // Authress
	format("sc_<l5,30>.<l4,6>.acc-<c10,32>.<v30,120>", keyFloor, nil),       // Authress
	format("ext_<l5,30>.<l4,6>.acc_<c10,32>.<v30,120>", keyFloor, nil),      // Authress
	format("ext_<l5,30>.<l4,6>.acc-<c10,32>.<v30,120>", keyFloor, nil),      // Authress
	format("scauth_<l5,30>.<l4,6>.acc_<c10,32>.<v30,120>", keyFloor, nil),   // Authress
	format("scauth_<l5,30>.<l4,6>.acc-<c10,32>.<v30,120>", keyFloor, nil),   // Authress
	format("authress_<l5,30>.<l4,6>.acc_<c10,32>.<v30,120>", keyFloor, nil), // Authress
	format("authress_<l5,30>.<l4,6>.acc-<c10,32>.<v30,120>", keyFloor, nil), // Authress
	format("access-sandbox-<h8>-<h4>-<h4>-<h4>-<h12>", hexFloor, nil),       // Plaid
	format("access-development-<h8>-<h4>-<h4>-<h4>-<h12>", hexFloor, nil),   // Plaid
	format("access-production-<h8>-<h4>-<h4>-<h4>-<h12>", hexFloor, nil),    // Plaid
	format("pk.<l60>.<l22>", keyFloor, nil),                                 // Mapbox
	format("sk.<l60>.<l22>", keyFloor, nil),                                 // Mapbox
	format("t1.<v1,60>.<v86,88>", keyFloor, nil),                            // Yandex
	format("AQVN<w35,38>", keyFloor, nil),                                   // Yandex
	format("atlasv1.<v60,70>", keyFloor, nil),                               // Terraform Cloud
	format("AQ.Ab<w40,>", keyFloor, nil),                                    // Google, bound API keys
	format("napi_<a40,>", keyFloor, nil),                                    // Neon
	format("jina_<a40,>", keyFloor, nil),                                    // Jina
	format("vcp_<a40,>", keyFloor, nil),                                     // Vercel
	format("re_<n28,>", keyFloor, nil),                                      // Resend
	format("sk_car_<a20,>", keyFloor, nil),                                  // Cartesia
	format("dvc_server_<n30,>", keyFloor, nil),                              // DevCycle
	format("tskey-auth-<c30,>", keyFloor, nil),                              // Tailscale
	format("tskey-api-<c30,>", keyFloor, nil),                               // Tailscale
}

// githubSum reports whether body ends with the checksum GitHub and npm give their tokens: the CRC32 of all but the last six
// bytes, as six digits of base 62.
func githubSum(body string) bool {
	const digits, sum = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", 6
	if len(body) < 2*sum {
		return false
	}
	c := crc32.ChecksumIEEE([]byte(body[:len(body)-sum]))
	for k := len(body) - 1; k >= len(body)-sum; k-- {
		if body[k] != digits[c%62] {
			return false
		}
		c /= 62
	}
	return true
}

// published are hashes (64-bit FNV-1a) of keys that stand in public documentation and open source for everyone's use: they are no
// one's secret, and they are quoted everywhere.
var published = map[uint64]bool{
	0x6acbd824bd32bbd4: true,
	0x29a336c7244f48dd: true,
	0x08b545962adc7d8b: true,
	0xe7666dbb286c6c2e: true,
	0x12113c2e6979f447: true,
	0x828818f833257868: true,
	0x6835e0f288832a40: true,
	0x816cd10fdb11ead0: true,
	0xadbd04e3fe1b6d49: true,
	0xdb9422f1dd332dcc: true,
	0x515cb771a4238032: true,
	0xe754678ea2b14ef1: true,
	0xc73f1e61952e6987: true,
	0x294c63f8344d5df1: true,
}

func isPublished(key string) bool {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return published[h]
}

// wrappedFormats are the longer prefixes in base64, so that a stream knows a wrapped key by how it begins.
func wrappedFormats() (out []keyFormat) {
	out = append(out, format("ZXlK<b60,>", keyFloor, nil)) // a JWT
	for _, f := range keyFormats {
		if n := len(f.prefix) / 3 * 3; n >= 6 {
			out = append(out, format(base64.StdEncoding.EncodeToString([]byte(f.prefix[:n]))+"<b24,>", keyFloor, nil))
		}
	}
	return out
}
