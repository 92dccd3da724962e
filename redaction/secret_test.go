package redaction

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"html"
	"math/rand/v2"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// secretsIn lists "ENTITY text" for each span of the secret classes.
func secretsIn(text string) (out []string) {
	var sc scanner
	sc.scan(text, secretClasses)
	for _, x := range sc.merged() {
		out = append(out, catalogue[x.ent].name+" "+text[x.start:x.end])
	}
	return out
}

// lowerChars and what base62Chars lacks of base64url.
const (
	lowerChars = "abcdefghijklmnopqrstuvwxyz0123456789"
	urlChars   = base62Chars + "-_"
)

// charsOf are bytes of a class of an outline, without those that would make a word of it.
func charsOf(of uint8) (chars string) {
	for b := byte(' '); b < 0x7f; b++ {
		if keyClass[b]&of != 0 && keyClass[b]&(kDash|kUnder|kDot|kBase64) == 0 {
			chars += string(b)
		}
	}
	return chars
}

// made makes a value of an outline: as short as it may be, or a few bytes longer where it is open.
func made(o outline, seed uint64) (v string) {
	for k, st := range o {
		if st.lit != "" {
			v += st.lit
			continue
		}
		v += drawn(seed+uint64(k), charsOf(st.of), max(st.min, 1))
	}
	return v
}

// Every format is found as itself, however it stands in the text, and only as a whole.
func TestEveryKeyFormat(t *testing.T) {
	for _, f := range keyFormats {
		t.Run(f.prefix, func(t *testing.T) {
			for seed := uint64(1); ; seed++ {
				key := f.prefix + made(f.parts, seed*100)
				if body := key[len(f.prefix):]; !random(body[:min(len(body), judged)], f.entropy) || worded(body, 12, 60) {
					continue // not every draw looks random
				}
				if m := keyAt(key, 0, 0, false); m.v != yes || m.end != len(key) {
					t.Fatalf("keyAt(%q) = %+v, want the whole of %d bytes", key, m, len(key))
				}
				if len(key) < minKeyRun || strings.ContainsAny(f.prefix, "~=") { // found by the byte in it, see odd
					return
				}
				for _, text := range []string{"it is " + key + " ok", "(" + key + ")", "a=1&b=" + key + "&c=2", "say \"" + key + "\"\n"} {
					if got := secretsIn(text); len(got) != 1 || !strings.HasSuffix(got[0], " "+key) {
						t.Errorf("%q holds %q, want the key", text, got)
					}
				}
				return
			}
		})
	}
}

// A vendor's name and an assignment make a secret of what would be anything else.
func TestEveryVendorRule(t *testing.T) {
	for _, r := range vendorRules {
		for _, w := range strings.Fields(r.words) {
			for _, shape := range strings.Fields(r.shapes) {
				t.Run(w+" "+shape, func(t *testing.T) {
					o := outlineOf(shape)
					seed := uint64(1)
					v := made(o, seed)
					for ; !random(v, r.entropy) || !strings.ContainsAny(v, "0123456789"); seed++ {
						v = made(o, seed*100)
					}
					word := w
					if !strings.HasSuffix(w, "token") && !strings.HasSuffix(w, "key") {
						word += "_token"
					}
					up := strings.ToUpper(word)
					for _, text := range []string{
						word + " = \"" + v + "\"", up + "=" + v + "\n", word + ": '" + v + "'", word + ": " + v, "export " + up + "=\"" + v + "\"", "  \"" + word + "\" => \"" + v + "\",",
						"{\n  \"" + word + "\": \"" + v + "\"\n}", word + " := `" + v + "`", "var " + word + " string = \"" + v + "\"", "$" + word + " .= \"" + v + "\";", word + " ?= \"" + v + "\"",
						"System.setProperty(\"" + up + "\", \"" + v + "\")", "<" + word + ">\n    " + v + "\n</" + word + ">", "os.environ[\"" + up + "\"] = \"" + v + "\"", "{\"f\": \"" + up + "=" + v + "\\nB=1\"}",
					} {
						if got := secretsIn(text); len(got) != 1 || !strings.HasSuffix(got[0], " "+v) {
							t.Errorf("%q holds %q, want the value", text, got)
						}
					}
				})
			}
		}
	}
}

func TestKnownByTheWordBeforeThem(t *testing.T) {
	v := drawn(3, base62Chars, 32)
	pw, plain := "Tr0ub4"+"dor&3x", "Tr0ub4"+"dor!3x"
	for _, c := range []struct{ name, text, want string }{
		{"env", "API_SECRET=" + v, "GENERIC_SECRET " + v},
		{"quoted", `clientSecret = "` + v + `"`, "GENERIC_SECRET " + v},
		{"json", `{"client_secret":"` + v + `"}`, "GENERIC_SECRET " + v},
		{"json in a string", `{\"client_secret\":\"` + v + `\"}`, "GENERIC_SECRET " + v},
		{"yaml", "auth_token: " + v + "\nx: 1", "GENERIC_SECRET " + v},
		{"single quotes", "secret_key: '" + v + "'", "GENERIC_SECRET " + v},
		{"ruby", `:access_token => "` + v + `"`, "GENERIC_SECRET " + v},
		{"typescript", "const apiKey: string = `" + v + "`;", "GENERIC_SECRET " + v},
		{"base64", `signing_key = "` + drawn(8, base62Chars, 40) + "+" + drawn(9, base62Chars, 2) + `="`, "GENERIC_SECRET " + drawn(8, base62Chars, 40) + "+" + drawn(9, base62Chars, 2) + "="},
		{"hexadecimal", "SECRET_TOKEN=" + drawn(6, hexChars, 40), "GENERIC_SECRET " + drawn(6, hexChars, 40)},
		{"password in quotes", `password = "` + pw + `"`, "GENERIC_SECRET " + pw},
		{"password in an env file", "DB_PASSWORD=" + plain + "\n", "GENERIC_SECRET " + plain},
		{"password in XML", `<add key="ClearTextPassword" value="` + pw + `" />`, "GENERIC_SECRET " + pw},
		{"manifest", "kind: Secret\ndata:\n  extra: " + base64.StdEncoding.EncodeToString([]byte("admin:"+pw)) + "\n", "GENERIC_SECRET extra: " + base64.StdEncoding.EncodeToString([]byte("admin:"+pw))},
		{"bearer header", `-H "Authorization: Bearer ` + v + `"`, "AUTH_HEADER " + v},
		{"basic header", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("u1:"+v)), "AUTH_HEADER " + base64.StdEncoding.EncodeToString([]byte("u1:"+v))},
		{"key header", "X-Api-Key: " + v, "AUTH_HEADER " + v},
		{"curl user", "curl -u elastic:" + pw + " https://localhost:9200", "AUTH_HEADER elastic:" + pw},
		{"curl user in quotes", `curl --user 'joe@example.com:` + pw + `' https://x.example`, "AUTH_HEADER joe@example.com:" + pw},
		{"curl token for a user", "curl https://x.example -u " + v + ": -d a=1", "AUTH_HEADER " + v + ":"},
		{"curl token for a password", `curl -u ":` + v + `" https://x.example`, "AUTH_HEADER :" + v},
		{"curl header of any name", `curl --header "X-Master-Api-Key: ` + v + `"`, "AUTH_HEADER " + v},
		{"curl header without digits", `curl -H 'Authorization: Basic dXNl` + `cjpwYXNz'`, "AUTH_HEADER dXNl" + "cjpwYXNz"},
		{"secret with punctuation", `"secret_key" => "sk_` + drawn(2, base62Chars, 12) + "#" + drawn(3, base62Chars, 10) + `&@*",`, "GENERIC_SECRET sk_" + drawn(2, base62Chars, 12) + "#" + drawn(3, base62Chars, 10) + "&@*"},
		{"URL password", "https://app:" + v + "@example.com/x", "URL_CREDENTIALS " + v},
		{"URL token for a user", "https://" + v + "@example.com/x.git", "URL_CREDENTIALS " + v},
		{"database URL", "postgres://app:" + "hunter" + "2@db.example.com:5432/x", "DB_DSN hunter" + "2"},
		{"broker URL without a user", "redis://:" + "s3cr" + "3tpw@cache:6379/0", "DB_DSN s3cr" + "3tpw"},
		{"MySQL driver", "app:" + "hunter" + "2@tcp(127.0.0.1:3306)/x", "DB_DSN hunter" + "2"},
		{"ADO", "Server=db;Database=x;User Id=sa;Password=" + "hunter" + "2;Encrypt=true", "DB_DSN hunter" + "2"},
		{"libpq", "host=db user=app password=" + "hunter" + "2 dbname=x", "DB_DSN hunter" + "2"},
		{"query", "https://example.com/d?id=7&access_token=" + v + "&x=1", "URL_CREDENTIALS " + v},
		{"signed query", "https://b.example.com/o?X-Amz-Signature=" + drawn(6, hexChars, 64), "URL_CREDENTIALS " + drawn(6, hexChars, 64)},
		{"slack webhook", "post to https://hooks." + "slack.com/services/T" + drawn(1, upperChars, 8) + "/B" + drawn(2, upperChars, 8) + "/" + drawn(3, base62Chars, 24) + " now",
			"SECRET https://hooks." + "slack.com/services/T" + drawn(1, upperChars, 8) + "/B" + drawn(2, upperChars, 8) + "/" + drawn(3, base62Chars, 24)},
		{"discord webhook", "https://discord" + ".com/api/webhooks/123456789012345678/" + drawn(4, urlChars, 68), "SECRET https://discord" + ".com/api/webhooks/123456789012345678/" + drawn(4, urlChars, 68)},
		{"telegram bot", "https://api.telegram.org/bot1234567890:A" + "A" + drawn(5, base62Chars, 33) + "/send", "SECRET 1234567890:A" + "A" + drawn(5, base62Chars, 33)},
		{"facebook app", "911602140448729|" + drawn(4, base62Chars, 27), "SECRET 911602140448729|" + drawn(4, base62Chars, 27)},
		{"azure client", "client_secret: Yz7" + "7Q~" + drawn(4, base62Chars, 32), "SECRET Yz7" + "7Q~" + drawn(4, base62Chars, 32)},
		{"openshift", "oc login --token=sha" + "256~" + drawn(4, urlChars, 43), "SECRET sha" + "256~" + drawn(4, urlChars, 43)},
		{"terraform", drawn(2, base62Chars, 14) + ".atlas" + "v1." + drawn(4, base62Chars, 64), "SECRET " + drawn(2, base62Chars, 14) + ".atlas" + "v1." + drawn(4, base62Chars, 64)},
		{"maxmind", "k " + drawn(2, base62Chars, 6) + "_" + drawn(4, base62Chars, 29) + "_m" + "mk", "SECRET " + drawn(2, base62Chars, 6) + "_" + drawn(4, base62Chars, 29) + "_m" + "mk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff([]string{c.want}, secretsIn(c.text)); diff != "" {
				t.Errorf("%q (-want +got):\n%s", c.text, diff)
			}
		})
	}
}

// In an answer that is looked at word by word, the value is hidden wherever the stream was cut.
func TestSecretsInAnswers(t *testing.T) {
	v := drawn(3, base62Chars, 32)
	okta := "00" + drawn(2, base62Chars, 40)
	for _, c := range []struct{ name, text, value, want string }{
		{"generic", "set API_SECRET=\"" + v + "\" and go on", v, "set API_SECRET=\"[SECRET]\" and go on"},
		{"vendor", "okta_token: " + okta + "\nnext line", okta, "okta_token: [SECRET]\nnext line"},
		{"database", "use postgres://app:" + v + "@db.example.com/x then", v, "use postgres://app:[DSN_PASSWORD]@db.example.com/x then"},
		{"header", "send Authorization: Bearer " + v + " with it", v, "send Authorization: Bearer [CREDENTIALS] with it"},
		{"terraform", "k " + drawn(2, base62Chars, 14) + ".atlas" + "v1." + drawn(4, base62Chars, 64) + " ok", drawn(4, base62Chars, 64), "k " + drawn(2, base62Chars, 14) + ".[SECRET] ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testEngine(t).Session(testScope, mustProfile(t, "strict"))
			for cut := range len(c.text) {
				st := s.Stream()
				if got := st.Text(0, c.text[:cut]) + st.Text(0, c.text[cut:]) + st.Flush(0); got != c.want {
					t.Fatalf("cut at %d: %q, want %q", cut, got, c.want)
				}
			}
			st, got := s.Stream(), ""
			for i := range len(c.text) {
				got += st.Text(0, c.text[i:i+1])
			}
			if got += st.Flush(0); got != c.want || strings.Contains(got, c.value) {
				t.Errorf("byte by byte: %q, want %q", got, c.want)
			}
		})
	}
}

func TestKeyOfADocumentNamesItsValue(t *testing.T) {
	v := drawn(3, base62Chars, 32)
	for _, c := range []struct {
		key, text string
		want      int
	}{{"client_secret", v, 1}, {"okta", "00" + drawn(2, base62Chars, 40), 1}, {"authorization", "Bearer " + v, 1}, {"id", v, 0}, {"public_key", v, 0}, {"client_secret", "see the vault for that one", 0}, {"", v, 0}} {
		sc := scanner{key: c.key}
		sc.scan(c.text, secretClasses)
		if len(sc.spans) != c.want {
			t.Errorf("%s of %q: %d spans, want %d", c.text, c.key, len(sc.spans), c.want)
		}
	}
}

func TestNoSecretHere(t *testing.T) {
	hash := hex.EncodeToString([]byte(drawn(3, base62Chars, 20)))
	uuid := "123e4567-e89b-12d3-a456-426614174000"
	for _, c := range []struct{ name, text string }{
		{"name with a number", `"key": "goog-k8s-cluster-name"`}, {"names in a list", `'gss_key', 'gss_krb5_rfc1964_keydata'`}, {"counted up in hexadecimal", `symmetricKey = "` + strings.Repeat("0123456789"+"abcdef", 2) + `"`},
		{"no password in Python", "def login(host, port=1, user=None, password=None)"}, {"a block without a key", "-----BEGIN " + "RSA PRIVATE KEY----- -----END " + "RSA PRIVATE KEY-----"},
		{"environment", "const key = process.env.STRIPE_KEY_V2;"}, {"environment in Python", `token = os.environ["API_TOKEN_2"]`}, {"shell variable", "API_TOKEN=${API_TOKEN_V2}"},
		{"template", `password: "{{ .Values.db.password1 }}"`}, {"workflow", "token: ${{ secrets.GITHUB_TOKEN2 }}"}, {"f-string", `f"token={token_2024}"`}, {"call", "secret := deriveSecret32(seed)"},
		{"member", "apiKey = config.auth.key2048"}, {"path", `key_file = "/etc/ssl/private/server2048.key"`}, {"relative path", "secret: ./secrets/db-2024.txt"}, {"URL", `token_url = "https://id.example.com/oauth2/v2/token"`},
		{"placeholder", `api_key = "your-api-key-1234"`}, {"placeholder in brackets", "token=<token-12345678>"}, {"x", "secret_key=xxxxxxxxxxxxxxxx1"}, {"stars", "password=********1"}, {"documented AWS key", "key = AK" + "IAIOSFODNN7" + "EXAMPLE"},
		{"changeme", `password = "changeme123"`}, {"id", `"credentialId": "` + drawn(3, base62Chars, 22) + `"`}, {"public key", `public_key = "` + drawn(3, base62Chars, 43) + `"`}, {"primary key", "primaryKey=" + drawn(3, base62Chars, 30)},
		{"foreign key", "foreign_key: " + drawn(3, base62Chars, 30)}, {"UUID of a key", "key: " + uuid}, {"UUID", "access_id = \"" + uuid + "\""}, {"sum", "checksum: " + hash}, {"commit", `"commit": "` + hash + `"`},
		{"go.sum", "golang.org/x/auth v0.9.3 h1:" + base64.StdEncoding.EncodeToString([]byte(drawn(3, base62Chars, 32)))}, {"npm", `"integrity": "sha512-` + drawn(3, base64Chars, 86) + `=="`}, {"image", "image: app@sha256:" + hash + hash[:24]},
		{"identifier", `"tokenType": "decryptionKey1024"`}, {"version", "API_VERSION=rc0.14.1_20250311_0803-SNAPSHOT"}, {"tokens", "max_tokens: 100000000000"}, {"prose", "The secret: 12 slides, no more."}, {"key and number", "key: 2026-03-14T10:30:00Z"},
		{"comparison", "if key_down_event==" + drawn(3, base62Chars, 29) + " {"}, {"curl with variables", `curl -u "${user}":"${pass1}" https://x.example`}, {"curl with nothing", "curl --user xxx:yyy https://x.example"}, {"curl documented", "curl --user user:pass https://x.example"},
		{"URL password to fill in", "postgres://user:password@localhost/db and mysql://root:${PW}@db/x"}, {"URL port", "http://localhost:8080/@me"}, {"header to fill in", `Authorization: Bearer $(gcloud auth print-access-token)`}, {"header in prose", "Authorization: Token **********"},
		{"truncated example", "export TOKEN=ops_eyJzaWduSW5BZGRyZXNzIjoiaHR0cHM6..."}, {"sequence", "asana_token = xxxxxxxxxxxxxxxx"}, {"alphabet", `validKeyChars = "0123456789abcdefghijklmnopqrstuvwxyz_-."`}, {"css", ".linear { background: linear-gradient(0deg, #aabbcc112233) }"},
		{"camel case", "sumObj = su" + drawn(4, base62Chars, 12)}, {"base64 of prose", base64.StdEncoding.EncodeToString([]byte("nothing to see here, only a long sentence in base64"))}, {"mention", "a key starts with sk-" + "ant- or gh" + "p_"},
		{"short password in a URL", "http://abc:xyz@example.com"}, {"working directory", "USER=go PWD=/home/go/src1"}, {"memory quote", `"password": "see the vault, entry 12"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := secretsIn(c.text); got != nil {
				t.Errorf("%q holds %q, want nothing", c.text, got)
			}
		})
	}
}

// Spellings that hide a key from a plain search do not hide it from us.
func TestWrappedAndEscaped(t *testing.T) {
	key, jwt := testKey(), testJWT()
	std := base64.StdEncoding.EncodeToString
	glued := "wh" + "sec_" + drawn(4, base62Chars, 20) + "/" + drawn(5, base62Chars, 11) + "+"
	for _, c := range []struct{ name, text, want string }{
		{"base64", "x " + std([]byte("key="+key)) + " y", "SECRET " + std([]byte("key="+key))},
		{"base64 of a JWT", std([]byte(jwt)), "JWT " + std([]byte(jwt))},
		{"base64 twice", std([]byte(std([]byte("k:" + key)))), "SECRET " + std([]byte(std([]byte("k:"+key))))},
		{"base64url", base64.RawURLEncoding.EncodeToString([]byte("???>>>" + key)), "SECRET " + base64.RawURLEncoding.EncodeToString([]byte("???>>>"+key))},
		{"base64 of a private key", std([]byte(testPEM("\n"))), "PRIVATE_KEY " + std([]byte(testPEM("\n")))},
		{"behind a URL escape", "q=token%3D" + key, "SECRET " + key},
		{"behind an escaped newline", `a\n` + key, "SECRET " + key},
		{"behind an escaped quote", `\u0022` + key + `\u0022`, "SECRET " + key},
		{"behind an entity", "&quot;" + key + "&quot;", "SECRET " + key},
		{"escaped inside", "k=" + url.QueryEscape(glued), "SECRET " + url.QueryEscape(glued)},
		{"entities inside", strings.ReplaceAll(key, "-", "&#45;"), "SECRET " + strings.ReplaceAll(key, "-", "&#45;")},
		{"hexadecimal entities", strings.ReplaceAll(key, "-", "&#x2D;"), "SECRET " + strings.ReplaceAll(key, "-", "&#x2D;")},
		{"URL-escaped dashes", strings.ReplaceAll(key, "-", "%2D"), "SECRET " + strings.ReplaceAll(key, "-", "%2D")},
		{"HTML", html.EscapeString(`<a k="` + key + `">`), "SECRET " + key},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff([]string{c.want}, secretsIn(c.text)); diff != "" {
				t.Errorf("%q (-want +got):\n%s", c.text, diff)
			}
		})
	}
	if got := secretsIn(std([]byte(std([]byte(std([]byte("k:" + key))))))); got != nil {
		t.Errorf("looked deeper than %d: %q", maxWraps, got)
	}
}

func TestChecksumMakesUpForEntropy(t *testing.T) {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	body := strings.Repeat("a1", 15)
	sum := []byte("000000")
	c := crc32.ChecksumIEEE([]byte(body))
	for k := 5; k >= 0; k-- {
		sum[k] = digits[c%62]
		c /= 62
	}
	if key := "gh" + "p_" + body + string(sum); keyAt(key, 0, 0, false).v != yes {
		t.Errorf("%q is not found", key)
	}
	if key := "gh" + "p_" + body + "000000"; keyAt(key, 0, 0, false).v != no {
		t.Errorf("%q is found", key)
	}
}

func TestPrivateKeysInEveryArmour(t *testing.T) {
	age := "AGE-" + "SECRET-KEY-1" + strings.ToUpper(drawn(2, "qpzry9x8gf2tvdw0s3jn54khce6mua7l", 58))
	for _, c := range []struct{ name, text string }{
		{"PKCS #8", strings.ReplaceAll(testPEM("\n"), "RSA "+"PRIVATE", "PRIVATE")}, {"OpenSSH", strings.ReplaceAll(testPEM("\n"), "RSA "+"PRIVATE", "OPENSSH "+"PRIVATE")},
		{"EC", strings.ReplaceAll(testPEM("\r\n"), "RSA "+"PRIVATE", "EC "+"PRIVATE")}, {"PGP", strings.ReplaceAll(testPEM("\n"), "RSA "+"PRIVATE KEY", "PGP "+"PRIVATE KEY BLOCK")},
		{"escaped", testPEM(`\n`)}, {"age", age},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, text := range []string{c.text, "key:\n" + c.text + "\nend", `{"k":"` + c.text + `"}`} {
				got := secretsIn(text)
				if len(got) != 1 || !strings.HasSuffix(got[0], " "+c.text) {
					t.Errorf("%q holds %q", text, got)
				}
			}
		})
	}
}

// Lines as machines write them, one of a hundred thousand of which may be taken for a secret.
func TestNoSecretsInMachineText(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	hexOf := func(n int) string { return drawn(r.Uint64(), hexChars, n) }
	for _, c := range []struct {
		name string
		line func() string
	}{
		{"npm lock", func() string {
			return fmt.Sprintf("    \"node_modules/p%d\": {\"resolved\": \"https://r.example/p/-/p-%d.tgz\", \"integrity\": \"sha512-%s==\"},", r.IntN(1e6), r.IntN(99), drawn(r.Uint64(), base64Chars, 86))
		}},
		{"go.sum", func() string {
			return fmt.Sprintf("example.com/auth/token v1.%d.0 h1:%s=", r.IntN(99), drawn(r.Uint64(), base64Chars, 43))
		}},
		{"cargo lock", func() string { return "checksum = \"" + hexOf(64) + "\"" }},
		{"access log", func() string {
			return fmt.Sprintf("10.0.%d.%d - - [14/Mar/2026:10:%02d:%02d +0000] \"GET /a/%s?id=%d HTTP/1.1\" 200 %d \"-\" \"Mozilla/5.0\"", r.IntN(255), r.IntN(255), r.IntN(60), r.IntN(60), hexOf(24), r.IntN(1e9), r.IntN(1e6))
		}},
		{"request log", func() string {
			return fmt.Sprintf("ts=1764505%06d level=info request_id=%s trace=%s key=deck:%d etag=\"%s\" commit=%s", r.IntN(1e6), drawn(r.Uint64(), lowerChars, 26), hexOf(32), r.IntN(1e9), hexOf(32), hexOf(40))
		}},
		{"kubernetes", func() string {
			return fmt.Sprintf("  uid: %s-%s-4%s-8%s-%s\n  image: r.example/app@sha256:%s\n  name: web-%s-%s", hexOf(8), hexOf(4), hexOf(3), hexOf(3), hexOf(12), hexOf(64), hexOf(10), drawn(r.Uint64(), lowerChars, 5))
		}},
		{"ids in JSON", func() string {
			return fmt.Sprintf(`{"id":"%s","tool_use_id":"toolu_01%s","parent":"%s","n":%d,"x":%v}`, drawn(r.Uint64(), urlChars, 21), drawn(r.Uint64(), base62Chars, 22), hexOf(24), r.Int64(), r.NormFloat64())
		}},
		{"bare base64", func() string { return drawn(r.Uint64(), base64Chars, 88) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 10000
			hits := 0
			for range n {
				if line := c.line(); secretsIn(line) != nil {
					if hits++; hits <= 3 {
						t.Logf("%q in %q", secretsIn(line), line)
					}
				}
			}
			if hits > 1 {
				t.Errorf("%d of %d lines hold a secret", hits, n)
			}
		})
	}
}

// What holds the parts of many candidates takes no more than its length.
func TestSecretsAreLinear(t *testing.T) {
	for _, c := range []struct{ name, unit string }{
		{"equals", "="}, {"colons", ":"}, {"greater than", ">"}, {"tokens", "token="}, {"tokens and colons", "token:"}, {"names", "secret_key_token_password=a1"}, {"schemes", "Bearer "}, {"locations", "https://"}, {"users", "https://a:"},
		{"ats", "://a:b1c2d3e4@"}, {"queries", "&token=a1b2c3d4"}, {"percents", "%2D"}, {"escaped keys", "sk%2Dant%2D"}, {"entities", "a1&#45;"}, {"tildes", "1Q~"}, {"pipes", "1234567890123456|"}, {"base64", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="},
		{"base64 of base64", "UVVKRFJFVkdSMGhK"}, {"base64 of keys", "c2stYW50LQ"}, {"curl", "curl -u a:"}, {"bots", "1234567890:AA"}, {"manifest", "kind: Secret\ndata:\n a: QUJDREVGR0hJSktM1\n"}, {"ADO", "server=a;password="}, {"MySQL", "a:b@tcp("}, {"atlas", ".atlasv1."},
		{"attributes", `<add key="a" value="`}, {"commas", `"a1b2c3d4", `}, {"outline", "xoxa-1-"}, {"A", "A"}, {"quotes", `\"token\":\"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cost := func(n int) time.Duration {
				text := strings.Repeat(c.unit, n/len(c.unit))
				best := time.Hour
				for range 3 {
					var sc scanner
					at := threadTime(t)
					sc.scan(text, secretClasses)
					best = min(best, threadTime(t)-at)
				}
				return best
			}
			var small, large time.Duration
			for range 5 { // a busy machine can spoil a measurement
				if small, large = cost(16<<10), cost(128<<10); large <= 24*small+4*time.Millisecond {
					return
				}
			}
			t.Errorf("16 KiB took %v, 128 KiB took %v: more than linear", small, large)
		})
	}
}

// Whatever the text, spans lie inside it, are not empty, and do not depend on what scanned before.
func FuzzSecrets(f *testing.F) {
	seeds(f)
	for _, s := range []string{"token=", "https://a:b@", "Authorization: Bearer ", "password: \"", "xoxa-2-", "&#45;", "%2D", "1Q~", "curl -u a:b ", "://:@", "Bearer", "value=\"", "key=\"password\" value=\"x1y2z3w4\"", "data:\n a: QUJD\nkind: Secret"} {
		f.Add(s)
	}
	var used scanner
	f.Fuzz(func(t *testing.T, text string) {
		var fresh scanner
		fresh.scan(text, secretClasses)
		used.scan(text, secretClasses)
		for _, x := range fresh.spans {
			if x.start < 0 || x.end > len(text) || x.start >= x.end {
				t.Fatalf("span %+v in %d bytes of %q", x, len(text), text)
			}
		}
		if len(fresh.spans) != len(used.spans) {
			t.Fatalf("%q: %d spans, then %d", text, len(fresh.spans), len(used.spans))
		}
		for k := range fresh.spans {
			if fresh.spans[k] != used.spans[k] {
				t.Fatalf("%q: %+v, then %+v", text, fresh.spans[k], used.spans[k])
			}
		}
		// What is decided of a value while more may come holds when nothing more comes.
		for i := range len(text) {
			m, e := valueAt(text, i, true)
			if m.v == yes {
				if n, ne := valueAt(text, i, false); n.v != yes || n.end != m.end || ne != e {
					t.Fatalf("%q at %d: %+v while open, %+v when ended", text, i, m, n)
				}
			}
		}
	})
}
