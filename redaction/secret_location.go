package redaction

import "strings"

// maxUserInfo bounds the user name and password of a URL, maxLocation what is looked at of a webhook's.
const (
	maxUserInfo = 256
	maxLocation = 320
)

// databases are the schemes of the URLs of databases and brokers, in lower case.
var databases = []string{"postgres", "postgresql", "mysql", "mysqlx", "mariadb", "mongodb", "mongodb+srv", "redis", "rediss", "amqp", "amqps", "sqlserver", "mssql", "oracle", "clickhouse", "cockroachdb",
	"snowflake", "libsql", "db2", "cassandra", "couchbase", "couchbases", "couchdb", "neo4j", "bolt", "nats", "kafka", "memcached", "influxdb", "elasticsearch", "odbc", "vertica", "redshift", "firebird", "sqlanywhere", "ldap", "ldaps"}

// webhooks are the URLs that are a credential as a whole: whoever knows one may use it.
var webhooks = func() (t []outline) {
	for _, h := range []string{"hooks.slack.com/services/<b23,80>", "hooks.slack.com/workflows/<b23,120>", "hooks.slack.com/triggers/<b23,120>", "discord.com/api/webhooks/<d17,20>/<w60,>", "discordapp.com/api/webhooks/<d17,20>/<w60,>",
		"ptb.discord.com/api/webhooks/<d17,20>/<w60,>", "canary.discord.com/api/webhooks/<d17,20>/<w60,>"} {
		t = append(t, outlineOf(h))
	}
	return t
}()

// location looks at the URL whose "://" is at i: a password in it, or a webhook. It returns where the scan goes on.
func (sc *scanner) location(s string, i int, on entitySet) int {
	host := i + len("://")
	start := i
	for start > 0 && i-start < 16 && (isAlnum(s[start-1]) || s[start-1] == '+') {
		start--
	}
	if on.has(secretKey) {
		if end := webhook(s, host); end > 0 {
			sc.spans = append(sc.spans, span{start, end, secretKey})
			return end
		}
	}
	from, to, ent := userInfo(s, start, host)
	if to == 0 || !on.has(ent) {
		return host
	}
	if !keyMayStart(s, from) || sc.head(s, keyStart, from, on) < to {
		sc.spans = append(sc.spans, span{from, to, ent})
	}
	return to + 1 // what stands around the '@' is no address
}

// webhook returns the end of the webhook URL whose host stands at i, or 0.
func webhook(s string, i int) int {
	for _, o := range webhooks {
		if m := o.at(s, i, false); m.v == yes || m.v == open {
			if m.v == open {
				m.end, _ = extent(s, m.end, m.keep, false)
			}
			if random(s[i+len("hooks.slack.com"):m.end], keyFloor) {
				return m.end
			}
		}
	}
	window := s[i:min(len(s), i+maxLocation)]
	if k := strings.Index(window[:min(len(window), 96)], ".webhook.office.com/webhookb2/"); k > 0 && k < 64 && !strings.ContainsAny(window[:k], " /\t\n\"'") {
		e := k
		for e < len(window) && (keyClass[window[e]] != 0 || window[e] == '@') {
			e++
		}
		if e > k+100 {
			return i + e
		}
	}
	return 0
}

// userInfo returns the secret in the user part of the URL with its scheme at start and its host, or user, at i; to is 0 when there
// is none. It is the password, or the user name where that is a token and there is no password.
func userInfo(s string, start, i int) (from, to int, ent entity) {
	colon, amp := -1, -1
	for j := i; j < len(s) && j-i < maxUserInfo; j++ {
		switch b := s[j]; {
		case b == ':' && colon < 0:
			colon = j
			continue
		case b == '@':
			amp = j
			continue
		case b > ' ' && b != '/' && b != '?' && b != '#' && b != '"' && b != '\'' && b != '<' && b != '>' && b != '`' && b != '\\' && b < 0x7f:
			continue
		}
		break
	}
	if amp < 0 || amp == i {
		return 0, 0, 0
	}
	ent = urlCredentials
	for _, d := range databases {
		if strings.EqualFold(s[start:i-len("://")], d) {
			ent = databaseDSN
		}
	}
	if colon < 0 || colon > amp {
		// A token as the user name: https://TOKEN@host.
		if v := s[i:amp]; len(v) >= 20 && random(v, genericFloor) && !wordy(v) && !placeholder(v) && strings.IndexByte(v, '%') < 0 {
			return i, amp, ent
		}
		return 0, 0, 0
	}
	v := s[colon+1 : amp]
	if unset(v) {
		return 0, 0, 0
	}
	if amp-i == 17 && colon-i == 8 && hexWord(s[i:colon]) && hexWord(v) { // the user name is half of the credential
		return i, amp, secretKey
	}
	return colon + 1, amp, ent
}

// unset reports whether a password in a URL is none: empty, a name for one, or a template to be filled.
func unset(v string) bool {
	switch strings.ToLower(v) {
	case "", "password", "pass", "passwd", "pwd", "pw", "secret", "token", "xxx", "user", "username", "apikey", "api_key", "my-password", "mypassword", "your_password", "yourpassword", "<password>", "port", "bar@baz", "none", "null", "nil", "undefined":
		return true
	}
	if strings.ContainsAny(v, "${}<>()[]*") || strings.HasPrefix(v, "%") && len(v) <= 4 {
		return true
	}
	if len(v) < 4 {
		return true
	}
	same := true
	for i := 1; i < len(v); i++ {
		same = same && v[i] == v[0]
	}
	return same || strings.Contains(strings.ToLower(v), "ssword") && !strings.ContainsAny(v, "0123456789")
}

// queryNames are the parameters of URLs that carry a credential, in lower case without separators.
var queryNames = []string{"token", "sig", "signature", "xamzsignature", "xamzcredential", "xamzsecuritytoken", "xgoogsignature", "xgoogcredential", "accesstoken", "key", "code", "apikey", "auth", "secret", "password", "pwd", "clientsecret", "refreshtoken",
	"idtoken", "authtoken", "accesskey", "sessiontoken", "hmac", "ticket", "sessionid", "subscriptionkey"}

// queryValue decides whether the value of a URL's parameter starts at i.
func queryValue(region, s string, i int, more bool) match {
	w := nameOf(region)
	known := false
	for _, n := range queryNames {
		known = known || w.n == len(n) && w.has(0, n)
	}
	if !known {
		return match{}
	}
	e := i
	for e < len(s) && e-i <= 2*maxGeneric && (keyClass[s[e]] != 0 || s[e] == '%' || s[e] == '~') {
		e++
	}
	if e == len(s) && more && e-i <= 2*maxGeneric {
		return match{v: undecided, strong: e-i >= minHeader}
	}
	v := s[i:e]
	if len(v) < minHeader || len(v) > 2*maxGeneric || !random(v[:min(len(v), judged)], headerFloor) || placeholder(v) || wordy(v) {
		return match{}
	}
	return match{v: yes, end: e}
}

// keyAttribute returns the key of an XML element of the form <add key="K" value=, of which left is what stands before value.
func keyAttribute(left string) string {
	left = strings.TrimRight(left, " \t\r\n")
	if left == "" || left[len(left)-1] != '"' {
		return ""
	}
	left = left[:len(left)-1]
	k := strings.LastIndexByte(left, '"')
	if k < 0 || !strings.HasSuffix(strings.ToLower(left[:k]), "key=") && !strings.HasSuffix(strings.ToLower(left[:k]), "name=") {
		return ""
	}
	return left[k+1:]
}

// attributeValue decides whether the value attribute of an element with that key holds a secret. A password's element needs no
// further proof, since nothing but a password stands in it.
func attributeValue(key, s string, i int, quote byte, more bool) (match, entity) {
	if !strings.HasSuffix(strings.ToLower(key), "password") || quote == 0 {
		return valueOf(key, s, i, quote, '=', more)
	}
	e := i
	for e < len(s) && e-i <= maxPassword && s[e] != quote && s[e] >= ' ' {
		e++
	}
	if e == len(s) && more && e-i <= maxPassword {
		return match{v: undecided, strong: e-i >= minPassword}, genericSecret
	}
	if v := s[i:e]; e-i < minPassword || at(s, e) != quote || v[0] == '%' || strings.ContainsAny(v, "${}<>") {
		return match{}, 0
	}
	return match{v: yes, end: e}, genericSecret
}

// curlUser returns the bounds of the user and password, parted by the ':' at i, that are given to curl's -u or --user; end is 0
// when they are not.
func curlUser(s string, i int) (start, end int) {
	const short, long = "-u", "--user"
	start = i
	for start > 0 && i-start < maxPassword && s[start-1] > ' ' && s[start-1] != '"' && s[start-1] != '\'' && s[start-1] != '=' {
		start--
	}
	j := start
	quote := byte(0)
	if b := before(s, j); b == '"' || b == '\'' {
		quote = b
		j--
	}
	for k := 0; k < 5 && j > 0 && (s[j-1] == ' ' || s[j-1] == '='); k++ {
		j--
	}
	switch {
	case j >= len(long) && s[j-len(long):j] == long && before(s, j-len(long)) <= ' ':
	case j >= len(short) && s[j-len(short):j] == short && before(s, j-len(short)) <= ' ':
	default:
		return 0, 0
	}
	if !strings.Contains(s[max(0, j-2*contextBytes):j], "curl") {
		return 0, 0
	}
	end = i + 1
	for end < len(s) && end-i <= maxPassword && s[end] > ' ' && s[end] != quote && (quote != 0 || s[end] != '"' && s[end] != '\'') {
		end++
	}
	user, password := s[start:i], s[i+1:end]
	if user == "" || password == "" { // one token, the other half left out
		if one := user + password; len(one) < minWeak || !looksRandom(one, strongWord) {
			return 0, 0
		}
		return start, end
	}
	if len(user) < 3 || len(password) < 3 || unset(strings.TrimRight(strings.ReplaceAll(password, "$", ""), "0123456789")) && !strings.ContainsAny(password, "0123456789") ||
		strings.ContainsAny(user+password, "{}<>[]()*\"'") || user[0] == '$' || password[0] == '$' || unset(password) && password == "test" {
		return 0, 0
	}
	return start, end
}

// botToken returns the bounds of a Telegram bot's token around the ':' at i; end is 0 when there is none.
func botToken(s string, i int) (start, end int) {
	const half = 33
	if at(s, i+1) != 'A' || at(s, i+2) != 'A' {
		return 0, 0
	}
	start = i
	for start > 0 && i-start <= 10 && isDigit(s[start-1]) {
		start--
	}
	if n := i - start; n < 8 || n > 10 || isAlnum(before(s, start)) && !strings.HasSuffix(s[:start], "/bot") {
		return 0, 0
	}
	e, _ := extent(s, i+1, kURL, false)
	if e-i-1 < half+1 || e-i-1 > half+3 || !random(s[i+3:e], keyFloor) {
		return 0, 0
	}
	return start, e
}

// manifestEntry returns the bounds of an entry of a Kubernetes Secret's data, whose ':' is at i and whose value at v; end is 0 when
// it is none. The entry's name goes with it: it tells what the secret is for.
func manifestEntry(s string, i, v int) (start, end int) {
	const least, reach, depth = 10, 512, 1024
	end, _ = extent(s, v, kAlnum|kBase64, false)
	if end-v < least || before(s, v) == '\\' || isAlnum(at(s, end)) {
		return 0, 0
	}
	switch at(s, end) {
	case 0, '\n', '\r', '"', '\'', ' ':
	default:
		return 0, 0
	}
	start = i
	for start > 0 && (isAlnum(s[start-1]) || s[start-1] == '.' || s[start-1] == '-' || s[start-1] == '_') {
		start--
	}
	line := start
	for line > 0 && (s[line-1] == ' ' || s[line-1] == '\t') {
		line--
	}
	if start == i || line > 0 && s[line-1] != '\n' {
		return 0, 0
	}
	above := s[max(0, line-depth):line]
	k := strings.LastIndex(above, "data:")
	if k < 0 || strings.Contains(above[k:], "\n---") {
		return 0, 0
	}
	around := strings.ToLower(s[max(0, line-reach):min(len(s), end+reach)])
	if !strings.Contains(around, "kind: secret") && !strings.Contains(around, "kind: \"secret\"") {
		return 0, 0
	}
	return start, end
}

// hosts are what stands in a connection string beside a password, in lower case.
var hosts = []string{"server=", "data source=", "host=", "hostname=", "addr=", "endpoint=", "dsn=", "database=", "dbname=", "uid=", "user id=", "user=", "username="}

// connection returns the bounds of the password in a connection string around the '=' or ':' at i: key=value pairs, or
// user:password@tcp(host), as Go's MySQL driver has it. end is 0 when there is none.
func connection(s string, i int) (start, end int) {
	start = i + 1
	b := before(s, i)
	switch {
	case s[i] == ':' && isAlnum(b) && at(s, start) > ' ':
		for end = start; end < len(s) && end-start <= maxPassword && !stops[s[end]]; end++ {
			if s[end] == '@' && (strings.HasPrefix(s[end:], "@tcp(") || strings.HasPrefix(s[end:], "@unix(")) {
				if unset(s[start:end]) {
					return 0, 0
				}
				return start, end
			}
		}
		return 0, 0
	case s[i] == '=' && b|0x20 == 'd' && (endsFold(s[:i], "password") || endsFold(s[:i], "pwd")):
	default:
		return 0, 0
	}
	line := max(0, i-contextBytes)
	if k := strings.LastIndexByte(s[line:i], '\n'); k >= 0 {
		line += k
	}
	rest := s[start:min(len(s), start+contextBytes)]
	if k := strings.IndexByte(rest, '\n'); k >= 0 {
		rest = rest[:k]
	}
	beside := false
	for _, h := range hosts {
		beside = beside || containsFold(s[line:i], h) || containsFold(rest, h)
	}
	if !beside {
		return 0, 0
	}
	if q := at(s, start); q == '\'' || q == '"' {
		start++
	}
	for end = start; end < len(s) && end-start <= maxPassword && !stops[s[end]] && s[end] != '&' && s[end] != '\\'; end++ {
	}
	if unset(s[start:end]) || s[start] == '/' { // a working directory
		return 0, 0
	}
	return start, end
}

func endsFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

// containsFold is strings.Contains for a word in lower case, whatever the case in s.
func containsFold(s, word string) bool {
	for i := 0; i+len(word) <= len(s); i++ {
		if s[i]|0x20 == word[0]|0x20 && strings.EqualFold(s[i:i+len(word)], word) {
			return true
		}
	}
	return false
}
