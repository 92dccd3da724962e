package redaction

import (
	"slices"
	"strings"
)

// vendorRule is the shape of one vendor's secrets that nothing but the vendor's name before them gives away.
type vendorRule struct {
	words   string // the names, lower case without separators, parted by spaces
	shapes  string // as outlineOf reads them, parted by spaces
	entropy float64
}

const uuidShape = "<x8>-<x4>-<x4>-<x4>-<x12>"

// vendorRules are the vendors whose secrets look like any other random text, from the public rules of secret scanners.
var vendorRules = []vendorRule{
	{"adafruit", "<w32>", hexFloor},
	{"adobe", "<h32>", 2},
	{"airtable", "<a17>", hexFloor},
	{"algolia", "<a32>", hexFloor},
	{"alibaba aliyun", "<a30>", hexFloor},
	{"asana", "<d16> <a32>", 2},
	{"atlassian confluence jira", "<a24>", 3},
	{"beamer", "b_<v44>", keyFloor},
	{"bitbucket", "<a32> <v64>", hexFloor},
	{"bittrex", "<a32>", hexFloor},
	{"meraki", "<h40>", hexFloor},
	{"cloudflare", "<w40> <h37>", hexFloor},
	{"codecov", "<a32>", hexFloor},
	{"cohere coapikey", "<a40>", 3.5},
	{"coinbase", "<w64>", keyFloor},
	{"confluent", "<a16> <a64>", hexFloor},
	{"contentful", "<v43>", keyFloor},
	{"datadog ddapikey ddappkey", "<a40> <h32>", hexFloor},
	{"discord", "<h64> <d18> <v32>", 2},
	{"droneci", "<a32>", hexFloor},
	{"dropbox", "<a15> <v64>", hexFloor},
	{"etsy", "<a24>", keyFloor},
	{"facebook", "<h32>", hexFloor},
	{"fastly", "<v32>", keyFloor},
	{"finicity", "<h32> <a20>", hexFloor},
	{"finnhub", "<a20>", hexFloor},
	{"flickr", "<a32> <h16>", hexFloor},
	{"freshbooks", "<a64>", hexFloor},
	{"gitter", "<w40>", hexFloor},
	{"gocardless", "live_<v40> sandbox_<v40>", keyFloor},
	{"heroku", uuidShape, 2},
	{"hubspot", uuidShape, 2},
	{"intercom", "<v60>", keyFloor},
	{"jfrog artifactory bintray xray", "<a64> <a73>", hexFloor},
	{"kraken", "<v80,90>", keyFloor},
	{"kucoin", "<h24> " + uuidShape, 2},
	{"launchdarkly", "<v40>", keyFloor},
	{"linear", "<h32>", hexFloor},
	{"linkedin", "<a14> <a16>", hexFloor},
	{"lob", "live_<h35> test_<h35> live_pub_<h31> test_pub_<h31>", hexFloor},
	{"looker", "<a20> <a24>", hexFloor},
	{"mailchimp", "<h32>-us<d1,2>", hexFloor},
	{"mailgun", "<x32>-<x8>-<x8>", hexFloor},
	{"mattermost", "<a26>", hexFloor},
	{"messagebird", "<a25> " + uuidShape, 2},
	{"netlify", "<v40,46>", keyFloor},
	{"newrelic", "<a64>", hexFloor},
	{"nytimes newyorktimes", "<v32>", hexFloor},
	{"okta", "00<v40>", 4},
	{"plaid", "<a24> <a30>", 3},
	{"privateai", "<a32>", hexFloor},
	{"rapidapi", "<w50>", keyFloor},
	{"sendbird", uuidShape + " <h40>", 2},
	{"sentry", "<h64>", hexFloor},
	{"bundleenterprisecontribsyscom bundlegemscontribsyscom", "<h8>:<h8>", 0},
	{"snykapikey snykkey snyktoken snykapitoken snykoauthtoken snykoauthkey", uuidShape, 2},
	{"sonarlogin sonartoken", "<v40> sqp_<v40> sqa_<v40> squ_<v40>", hexFloor},
	{"sourcegraph", "<x40>", hexFloor},
	{"squarespace", uuidShape, 2},
	{"sumo", "su<a12> <a64>", hexFloor},
	{"telegr", "<d5,16>:A<w34>", hexFloor},
	{"travis", "<a22>", hexFloor},
	{"trello", "<a32> <h64>", hexFloor},
	{"twitch", "<a30>", hexFloor},
	{"twitter", "<a25> <a45> <a50> <d15,25>-<a20,40>", hexFloor},
	{"yandex", "YC<w38>", keyFloor},
	{"zendesk", "<a40>", hexFloor},
}

// keyword is a word that says what the value behind it is.
type keyword struct {
	word    string
	shapes  []outline // of a vendor's secrets; nil: a word that means a secret of whatever shape
	entropy float64
	weight  weight
}

// weight is how much a word of its own says.
type weight uint8

const (
	vendorWord weight = iota // says only whose secret it would be
	weakWord                 // often something else: key, auth
	strongWord               // a secret, unless it is a placeholder
	passWord                 // a secret people choose, so it need not look random
)

// secretWords are the words that mean a secret whoever's it is.
var secretWords = map[weight]string{
	weakWord:   "key auth api access",
	strongWord: "secret token credential creds apikey accesskey secretkey privatekey signingkey encryptionkey sharedkey accountkey licensekey bearer webhook",
	passWord:   "password passwd passphrase passwort motdepasse contrasena dbpass userpass pwd",
}

// keywordsOf lists, for each first letter, the words that begin with it, longer ones first where one begins another.
var keywordsOf = func() (t [26][]keyword) {
	add := func(k keyword) {
		l := &t[k.word[0]-'a']
		at := len(*l)
		for at > 0 && len((*l)[at-1].word) < len(k.word) {
			at--
		}
		*l = slices.Insert(*l, at, k)
	}
	for _, r := range vendorRules {
		var shapes []outline
		for _, s := range strings.Fields(r.shapes) {
			shapes = append(shapes, outlineOf(s))
		}
		for _, w := range strings.Fields(r.words) {
			add(keyword{word: w, shapes: shapes, entropy: r.entropy})
		}
	}
	for st, words := range secretWords {
		for _, w := range strings.Fields(words) {
			add(keyword{word: w, weight: st})
		}
	}
	return t
}()

// keywordStarts has a bit for the first three letters of every keyword, see rolled.
var keywordStarts = func() (t [1 << 15 / 64]uint64) {
	for _, list := range keywordsOf {
		for _, k := range list {
			h := rolled(rolled(rolled(0, k.word[0]), k.word[1]), k.word[2])
			t[h/64] |= 1 << (h % 64)
		}
	}
	return t
}()

// rolled is a number for the last three letters or digits, of which b is the last and h is for the three up to the one before it.
func rolled(h uint16, b byte) uint16 { return h<<5&0x7fe0 | uint16(b&31) }

// mayName reports whether a name may hold a keyword, whatever its case and the separators in it. It is wrong only in saying yes.
func mayName(region string) bool {
	var h uint16
	for i := range len(region) {
		if b := region[i]; isAlnum(b) {
			h = rolled(h, b)
			if keywordStarts[h/64]&(1<<(h%64)) != 0 {
				return true
			}
		}
	}
	return false
}

// notSecret are words that hold a keyword, or stand with one, and mean something that opens nothing.
var notSecret = strings.Fields("accessib accessor accessid accesslevel accesslog accessmode accesstype accesscontrol accesscount accesspoint accesspolicy randomaccess lastaccess apiid " +
	"apiname apiversion apihost apibase apiurl apiendpoint apigroup apikind rapidfire capital author credentialid credentialsid withcredential bucketkey foreignkey hotkey idxkey " +
	"naturalkey primarykey partitionkey sortkey rowkey pubkey publickey schemakey sequencekey turkey donkey monkey hockey jockey whiskey keyalias keyboard keycode keyframe keyid " +
	"keylen keymesh keyname keypair keypath keypress keyring keyselector keysig keysize keystone keystore keytype keyword keyup keydown keyleft keyright keyvaultid keyvaultname " +
	"keyvaulturi keyvaultto issuerkeyhash keyhash keying keyspace keyfile keyset keyusage keyevent keymap keypoint keybind keyslot keychain keyfield keyprefix keyserver keyfinger " +
	"keytab secretlen secretname secretsize secretsid secretref secretarn secretpath secretkeyref secrettype secretid csrftoken xsrftoken authenticitytoken apiendpoint credentialsendpoint tokenendpoint " +
	"apiuri credentialsuri tokenuri tokenurl credentialsurl publictoken tokenfile tokencount tokenid tokentype tokenize tokenlen tokenlimit tokenmap tokenname tokenexpir tokenreview " +
	"maxtoken passwordless passwordhash passwordfile passwordfield passwordpolicy passwordreset passwordlen sitekey cachekey idempotencykey dedupkey objectkey mapkey routekey messagekey " +
	"querykey datakeyname fingerprint thumbprint checksum digest sha256 sha512 sha1 md5 integrity etag authresult authenticationresults organizationauth authority authtype authmethod " +
	"authmode oauthversion knownhosts translationkey i18nkey localekey labelkey annotationkey statekey eventkey issuekey projectkey jirakey ticketkey testid classname")

// notSecretOf indexes notSecret by the first letter.
var notSecretOf = func() (t [26][]string) {
	for _, w := range notSecret {
		t[w[0]-'a'] = append(t[w[0]-'a'], w)
	}
	return t
}()
