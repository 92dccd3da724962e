package redaction

import (
	"encoding/hex"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// found lists "ENTITY text" for each span.
func found(tb testing.TB, text string) []string {
	tb.Helper()
	var out []string
	for _, sp := range testEngine(tb).Scan(mustProfile(tb, "balanced"), text) {
		out = append(out, sp.Entity+" "+text[sp.Start:sp.End])
	}
	return out
}

func TestScanFindsEachEntity(t *testing.T) {
	jwt, pem, escaped := testJWT(), testPEM("\n"), testPEM(`\n`)
	for _, c := range []struct{ name, text, want string }{
		{"plain email", "mail jane.doe@example.com now", "EMAIL_ADDRESS jane.doe@example.com"},
		{"email ends a sentence", "It is jane@example.co.uk.", "EMAIL_ADDRESS jane@example.co.uk"},
		{"email with plus and apostrophe", "to pat.o'brien+x@example.ie,", "EMAIL_ADDRESS pat.o'brien+x@example.ie"},
		{"email in angle brackets", "Jane <jane@example.org>", "EMAIL_ADDRESS jane@example.org"},
		{"email behind mailto", "[x](mailto:jane@example.org)", "EMAIL_ADDRESS jane@example.org"},
		{"email in a query", "?email=jane@example.org&x=1", "EMAIL_ADDRESS jane@example.org"},
		{"accented email", "à rené@exämple.com", "EMAIL_ADDRESS rené@exämple.com"},
		{"email between ideographs", "联系jane@example.com谢谢", "EMAIL_ADDRESS jane@example.com"},
		{"ideographic domain", "user@例え.jp", "EMAIL_ADDRESS user@例え.jp"},
		{"punycode top level", "a@b.xn--p1ai", "EMAIL_ADDRESS a@b.xn--p1ai"},
		{"chained addresses are one span", "a@b.com@c.com", "EMAIL_ADDRESS a@b.com@c.com"},
		{"password in a connection string", "postgres://app:hunter2@db.example.com/x", "DB_DSN hunter2"},

		{"visa bare", "4111111111111111", "CREDIT_CARD 4111111111111111"},
		{"visa of 13 digits", "4222222222222", "CREDIT_CARD 4222222222222"},
		{"visa in groups", "pay 4111 1111 1111 1111.", "CREDIT_CARD 4111 1111 1111 1111"},
		{"visa with dashes", "4111-1111-1111-1111", "CREDIT_CARD 4111-1111-1111-1111"},
		{"card, then its expiry", "4111 1111 1111 1111 12/28", "CREDIT_CARD 4111 1111 1111 1111"},
		{"card, then a CVV", "4111 1111 1111 1111 123", "CREDIT_CARD 4111 1111 1111 1111"},
		{"card after another number", "order 1234 4111 1111 1111 1111", "CREDIT_CARD 4111 1111 1111 1111"},
		{"amex in groups", "3782 822463 10005", "CREDIT_CARD 3782 822463 10005"},
		{"amex bare", "378282246310005", "CREDIT_CARD 378282246310005"},
		{"mastercard 2-series", "2223003122003222", "CREDIT_CARD 2223003122003222"},
		{"maestro of 12", "501800000009", "CREDIT_CARD 501800000009"},

		{"IBAN bare", "DE89370400440532013000", "IBAN_CODE DE89370400440532013000"},
		{"IBAN in groups", "IBAN: GB82 WEST 1234 5698 7654 32.", "IBAN_CODE GB82 WEST 1234 5698 7654 32"},
		{"IBAN lower case", "nl91abna0417164300", "IBAN_CODE nl91abna0417164300"},
		{"IBAN behind a label", "iban=FR1420041010050500013M02606", "IBAN_CODE FR1420041010050500013M02606"},
		{"shortest IBAN", "NO9386011117947", "IBAN_CODE NO9386011117947"},

		{"phone E.164", "call +14155552671", "PHONE_NUMBER +14155552671"},
		{"phone in groups", "+49 30 901820", "PHONE_NUMBER +49 30 901820"},
		{"phone with brackets", "+1 (415) 555-2671", "PHONE_NUMBER +1 (415) 555-2671"},
		{"phone with dots", "+33.6.12.34.56.78", "PHONE_NUMBER +33.6.12.34.56.78"},
		{"phone in a link", "tel:+447911123456", "PHONE_NUMBER +447911123456"},
		{"phone with an extension", "+14155552671x12", "PHONE_NUMBER +14155552671x12"},
		{"trunk zero in brackets", "+41 (0)96 471 07 95", "PHONE_NUMBER +41 (0)96 471 07 95"},
		{"North American number", "fax 345-899-3560x4587.", "PHONE_NUMBER 345-899-3560x4587"},
		{"national number behind a word", "Mobile: 03.93.92.16.85", "PHONE_NUMBER 03.93.92.16.85"},
		{"number on the line behind its label", "Phone:\n0393 1144137\n", "PHONE_NUMBER 0393 1144137"},
		{"number between ideographs", "电话13812345678。", "PHONE_NUMBER 13812345678"},
		{"Italian trunk zero", "+39 06 6982", "PHONE_NUMBER +39 06 6982"},

		{"JWT", "token " + jwt + ".", "JWT " + jwt},
		{"JWT in a header", "Authorization: Bearer " + jwt, "JWT " + jwt},
		{"JWT without its signature", jwt[:strings.LastIndexByte(jwt, '.')], "JWT " + jwt[:strings.LastIndexByte(jwt, '.')]},

		{"private key", "key:\n" + pem + "\nend", "PRIVATE_KEY " + pem},
		{"private key with spelled newlines", `{"private_key":"` + escaped + `\n"}`, "PRIVATE_KEY " + escaped},
		{"private key cut off", "key " + pem[:200], "PRIVATE_KEY " + pem[:200]},
		{"private key cut off, then prose", pem[:161] + "\n\nwhat is wrong, with this key?", "PRIVATE_KEY " + pem[:161]},
		{"encrypted private key", strings.Replace(pem, "KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00FF\n\n", 1), "PRIVATE_KEY " + strings.Replace(pem, "KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00FF\n\n", 1)},
		{"tiny private key", strings.ReplaceAll("-----BEGIN P-----\nabc\n-----END P-----", "P-", "PRIVATE"+" KEY-"), "PRIVATE_KEY " + strings.ReplaceAll("-----BEGIN P-----\nabc\n-----END P-----", "P-", "PRIVATE"+" KEY-")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff([]string{c.want}, found(t, c.text)); diff != "" {
				t.Errorf("Scan(%q) (-want +got):\n%s", c.text, diff)
			}
		})
	}
}

func TestScanFindsVendorKeys(t *testing.T) {
	b62 := func(n int) string { return drawn(5, base62Chars, n) }
	hx := func(n int) string { return drawn(6, hexChars, n) }
	up := func(n int) string { return drawn(7, upperChars, n) }
	for _, c := range []struct{ name, prefix, body string }{
		{"anthropic", "sk-" + "ant-api03-", b62(93)}, {"openai project", "sk-" + "proj-", b62(48)}, {"openai", "sk" + "-", b62(48)},
		{"openrouter", "sk-" + "or-v1-", hx(64)}, {"stripe live", "sk_" + "live_", b62(24)}, {"stripe restricted", "rk_" + "live_", b62(24)},
		{"stripe webhook", "wh" + "sec_", b62(32)}, {"aws", "AK" + "IA", up(16)}, {"aws session", "AS" + "IA", up(16)},
		{"google", "AI" + "za", b62(35)}, {"google oauth", "ya" + "29.", b62(60)}, {"github", "gh" + "p_", b62(36)}, {"github oauth", "gh" + "o_", b62(36)},
		{"github server", "gh" + "s_", b62(36)}, {"github user", "gh" + "u_", b62(36)}, {"github fine-grained", "github" + "_pat_", b62(22) + "_" + b62(59)},
		{"gitlab", "gl" + "pat-", b62(20)}, {"slack bot", "xo" + "xb-", "123456789012-1234567890123-" + b62(24)}, {"slack user", "xo" + "xp-", "123456789012-" + b62(24)},
		{"slack app", "xa" + "pp-", "1-A123-" + b62(40)}, {"npm", "np" + "m_", b62(36)}, {"pypi", "py" + "pi-", "AgEI" + b62(80)},
		{"sendgrid", "S" + "G.", b62(22) + "." + b62(43)}, {"mailgun", "ke" + "y-", hx(32)}, {"digitalocean", "dop" + "_v1_", hx(64)}, {"hugging face", "h" + "f_", b62(34)},
		{"groq", "gs" + "k_", b62(52)}, {"xai", "xa" + "i-", b62(80)}, {"shopify", "shp" + "at_", hx(32)}, {"square", "sq0" + "atp-", b62(22)},
		{"linear", "lin" + "_api_", b62(40)}, {"figma", "fig" + "d_", b62(40)}, {"docker", "dckr" + "_pat_", b62(27)}, {"gateway", "g" + "w_", b62(40)}, {"vault", "hv" + "s.", b62(90)},
	} {
		key := c.prefix + c.body
		t.Run(c.name, func(t *testing.T) {
			for _, text := range []string{key, "export KEY=" + key + "\n", `{"k": "` + key + `"}`, "it is " + key + ".", "(" + key + ")", "https://u:" + key + "@host/x", "--" + key} {
				if diff := cmp.Diff([]string{"SECRET " + key}, found(t, text)); diff != "" {
					t.Errorf("Scan(%q) (-want +got):\n%s", text, diff)
				}
			}
			for _, text := range []string{
				"x" + key, // inside a word
				c.prefix + strings.Repeat("x", len(c.body)), // a placeholder
				c.prefix,
				c.prefix + "your-key",
			} {
				if got := found(t, text); got != nil {
					t.Errorf("Scan(%q) = %q, want nothing", text, got)
				}
			}
		})
	}
}

func TestScanLeavesAlone(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"package version", "left-pad user@1.2.3 and react@18.2.0-beta.rc"}, {"npm scope", "@types/node and @a"}, {"git remote", "git@github.com:acme/deck.git"},
		{"abbreviated commit", "[`fafae5955d`] and bcdaf1234e"}, {"host without domain", "root@localhost pod@web-7d9f"}, {"retina image", "icon@2x.png"}, {"decorator", "@app.route('/x')"}, {"dots only", "a..@b.com"},
		{"no local part", " @example.com"}, {"UUID", "123e4567-e89b-12d3-a456-426614174000"}, {"numeric UUID", "41111111-1111-4111-8111-111111111111"},
		{"epoch seconds", "1764505200"}, {"epoch milliseconds", "1764505200123"}, {"epoch nanoseconds", "1764505200123456789"}, {"order number", "order 1234567812345678"},
		{"snowflake", "1182739182739182733"}, {"card with a wrong digit", "4111111111111112"}, {"zeros", "0000 0000 0000 0000"}, {"ones", "1111-1111-1111-1111"},
		{"card inside a longer number", "44111111111111111116"}, {"card inside a word", "x4111111111111111"}, {"card as a fraction", "0.4111111111111111"},
		{"card as a float", "4111111111111111.25"}, {"mixed separators", "4111-1111 1111-1111"}, {"four years", "2019 2020 2021 2022"}, {"version", "v1.2.3.4 10.0.19041.1"},
		{"floats", "3.14159265358979 -0.000123456789"}, {"time zone", "2026-01-14T10:30:00+0200 and 10:30+02:00"}, {"sum", "x+1234567 and 5 +12"},
		{"unassigned country code", "+2101234567890"}, {"too short", "+49123"}, {"too long", "+4915112345678901234"}, {"area code of one", "+1 123 456 7890"},
		{"diff line", "+12 -3 +100200300"}, {"base64 plus", "ab+14155552671cd"}, {"IBAN with a wrong digit", "DE89370400440532013001"}, {"IBAN of no country", "ZZ89370400440532013000"},
		{"IBAN inside a word", "XDE89370400440532013000"}, {"IBAN too long", "DE893704004405320130001"}, {"hex colour", "#4111aa DE8937"}, {"k8s name", "web-7d9f8b6c5-x2x9z"},
		{"image digest", "sha256:" + hex.EncodeToString(make([]byte, 32))}, {"css classes", "sk-circle sk-fading-circle-12-delay"}, {"snake case", "hf_hub_download_from_the_model_page npm_config_registry_url_setting"},
		{"documentation key", "AK" + "IAIOSFODNN7" + "EXAMPLE"}, {"mention of a key", "start with sk-" + "ant- and paste it"}, {"not a JWT", "eyJub3QiOiJhIHRva2VuIn0.e30.x eyJhbGci"},
		{"base64 of JSON", "eyJhbGciOiJIUzI1NiJ9"}, {"certificate", strings.ReplaceAll(testPEM("\n"), "RSA PRIVATE"+" KEY", "CERTIFICATE")},
		{"mention of a private key", "a file that begins with -----BEGIN " + "PRIVATE KEY----- is a secret"}, {"code about private keys", `if begin == "-----BEGIN ` + `PRIVATE KEY-----" && end == "-----END ` + `PRIVATE KEY-----" {`},
		{"rule", "-----\n----------\n"}, {"our own tokens", "EMAIL_KTRWQBZMXD PHONE_BCDFGHJKLM [SECRET] [JWT] **** **** **** 4242"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := found(t, c.text); got != nil {
				t.Errorf("Scan(%q) = %q, want nothing", c.text, got)
			}
		})
	}
}

// Twice the input must not take much more than twice the time, however it is made.
func TestScanIsLinear(t *testing.T) {
	p := mustProfile(t, "balanced")
	for _, c := range []struct{ name, unit string }{
		{"dots", "."}, {"digits", "4"}, {"spaced digits", "4111 "}, {"dashed digits", "4111-"}, {"at signs", "a@"}, {"dotted at signs", "a.a.a.a@a.a."}, {"phones", "+1 "}, {"phone digits", "+1-4-1-"},
		{"key prefixes", "sk-" + "ant-"}, {"key prefixes with bodies", "sk-" + "ant-aaaaaaaaaaaaaaaaaaaaaaaa-"}, {"jwt prefixes", "eyJ."}, {"jwt dashes", "-eyJ"}, {"pem headers", "-----BEGIN " + "PRIVATE KEY-----"},
		{"pem headers and ends", "-----BEGIN " + "PRIVATE KEY----- x -----END "}, {"dashes", "-"}, {"IBAN starts", "DE89 "}, {"accents", "é@é."}, {"colons", "a:"}, {"double colons", "::1"}, {"hex pairs", "0a:"}, {"dotted quads", "1.2.3."}, {"plates", "AB12 "}, {"rows", "ssn;b;c\n1;123456782;3\n\n"}, {"cells", "123456782;"}, {"rows of other widths", "1;2\n123456782;3;4\n"}, {"quoted cells", "\"123456782,\","}, {"nine digits", "123456782 "}, {"nine digits and words", "ssn tfn sin 123456782 "},
		{"letters and digits", "a1b2c3d4"}, {"full-width digits", "\uff14"}, {"zero-width", "4\u200b"}, {"combining", "a\u0301"}, {"references", "&#52;"}, {"escapes", `\u0034`}, {"dashes and digits", "1-"}, {"long words", "x"}, {"base58", "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cost := func(n int) time.Duration {
				text := strings.Repeat(c.unit, n/len(c.unit))
				best := time.Hour
				var sc scanner
				for range 9 {
					at := threadTime(t)
					sc.scan(text, p.requestOn)
					best = min(best, threadTime(t)-at)
				}
				return best
			}
			// A busy machine can spoil a measurement, so the best of several counts, and none is longer than a scheduler's slice. Eight
			// times the text takes eight times as long; if the time grew with the square it would take 64 times as long.
			small, large := time.Hour, time.Hour
			for range 12 {
				small, large = min(small, cost(8<<10)), min(large, cost(64<<10))
				if large <= 28*small+200*time.Microsecond {
					return
				}
			}
			t.Errorf("8 KiB took %v, 64 KiB took %v: more than linear", small, large)
		})
	}
}
