package redaction

import (
	"strings"
	"unicode/utf8"
)

// spelled are the entities that may hold no digit, at sign or colon, so that the scan of bytes passes over them. They are looked for
// in a pass of their own, which only the policies that ask for them pay for.
var spelled = setOf(urlAddress, personName).or(cued)

// inWords looks for URLs, for people who are introduced as such, and for what else words tell.
func (sc *scanner) inWords(s string, on entitySet) {
	url, person, cues := on.has(urlAddress), on.has(personName), on.meets(cued)
	if cues && sc.key != "" {
		sc.owned(s, on)
	}
	read := 0 // no cue below it
	for i := 0; i < len(s); i++ {
		b := s[i]
		if pastEscape(s, i, i+1) > 0 && b != 'u' {
			continue // the letter of an escape begins no word
		}
		starts := !wordByte(before(s, i)) || i > 1 && pastEscape(s, i-1, i) == i && s[i-2] == '\\'
		if cues && i >= read && (isAlnum(b) || b >= utf8.RuneSelf) && starts && !isDigit(before(s, i)) && before(s, i) != '_' {
			read = sc.cue(s, i, on)
		}
		switch {
		case url && b == '.' && i > 0 && isAlnum(s[i-1]):
			if start, end := urlAround(s, i); end > 0 {
				sc.add(urlAddress, start, end)
				i = end - 1
			}
		case person && isLetter(b) && starts:
			if start, end := personAfter(s, i); end > 0 {
				sc.add(personName, start, end)
				i = end - 1
			}
		}
	}
}

// topLevels are the top levels a host without a scheme must have one of, besides the two letters of a country.
var topLevels = func() map[string]bool {
	m := map[string]bool{}
	for t := range strings.FieldsSeq("com org net edu gov mil int info biz name pro aero coop museum mobi tel travel jobs cat asia xxx app dev page blog shop store online site website tech cloud agency email " +
		"io ai co me tv cc us uk de fr es it nl be ch at se no dk fi pl cz sk hu ro bg gr pt ie il tr ru ua by kz in cn jp kr tw hk sg my th vn id ph au nz za ng ke eg ma br ar cl mx pe ve ca eu lu li is ee lv lt si hr rs ba mk al cy mt su pk bd lk np ir iq sa ae qa kw om jo lb") {
		m[t] = true
	}
	return m
}()

// urlAround takes a URL, or a host with a known top level, around the first dot of its host.
func urlAround(s string, dot int) (int, int) {
	start := dot
	for start > 0 && dot-start < maxLabel && (isAlnum(s[start-1]) || s[start-1] == '-') {
		start--
	}
	b := before(s, start)
	if b == '@' || b == '.' || b == '_' || b >= 0x80 {
		return 0, 0
	}
	host := start
	scheme := false
	if start >= 3 && s[start-3:start] == "://" {
		k := start - 3
		for k > 0 && isLetter(s[k-1]) && start-k < 12 {
			k--
		}
		if k == start-3 || isAlnum(before(s, k)) {
			return 0, 0
		}
		scheme, start = true, k
	} else if b == '/' || b == '\\' || b == ':' {
		return 0, 0
	}
	end, last, labels := host, host, 0
	for j := host; j < len(s) && j-host <= maxDomain; {
		k := j
		for k < len(s) && k-j <= maxLabel && (isAlnum(s[k]) || s[k] == '-') {
			k++
		}
		if k == j {
			break
		}
		labels++
		last, end = j, k
		if at(s, k) != '.' || !isAlnum(at(s, k+1)) {
			break
		}
		j = k + 1
	}
	top := strings.ToLower(s[last:end])
	if labels < 2 || isDigit(top[0]) || !scheme && (!topLevels[top] || at(s, end) == '(' || at(s, end) == '_' || at(s, end) == '@') {
		return 0, 0
	}
	if labels == 2 && strings.EqualFold(s[host:last-1], "www") {
		return 0, 0
	}
	if at(s, end) == ':' && isDigit(at(s, end+1)) {
		for end++; isDigit(at(s, end)); end++ {
		}
	}
	if b := at(s, end); b == '/' || b == '?' || b == '#' {
		for end < len(s) && s[end] > ' ' && s[end] < 0x80 && strings.IndexByte("\"'<>`{}|\\^", s[end]) < 0 {
			end++
		}
		for strings.IndexByte(".,;:!?)]", s[end-1]) >= 0 {
			end--
		}
	}
	return start, end
}

// titles are words a person's name follows.
var titles = map[string]bool{"mr": true, "mrs": true, "ms": true, "miss": true, "dr": true, "prof": true, "professor": true, "herr": true, "frau": true, "madame": true, "monsieur": true, "mme": true, "senor": true, "senora": true, "signor": true, "signora": true, "sir": true}

// introductions are what stands before a name in a sentence, lower case.
var introductions = []string{"my name is ", "name is ", "i am called ", "ich hei\u00dfe ", "mein name ist ", "je m'appelle ", "me llamo ", "mi chiamo ", "mi nombre es ", "first name: ", "last name: ", "full name: ", "name: ", "dear ", "calls me ", "was called ", "directed by ", "starring ", "signed by ",
	"what's your name? ", "name on the account? ", "regards,\n", "sincerely,\n", "mit freundlichen gr\u00fc\u00dfen\n"}

// maxNames bounds how many words one name has.
const maxNames = 4

// personAfter takes the capitalised words behind a title or an introduction that begins at i. It is a guess by cue, not knowledge
// of names.
func personAfter(s string, i int) (int, int) {
	j := i
	for j < len(s) && isLetter(s[j]) && j-i < 12 {
		j++
	}
	from := 0
	if titles[strings.ToLower(s[i:j])] && s[i]-'A' < 26 {
		if at(s, j) == '.' {
			j++
		}
		if at(s, j) == ' ' {
			from = j + 1
		}
	}
	if from == 0 {
		for _, cue := range introductions {
			if len(s)-i > len(cue) && strings.EqualFold(s[i:i+len(cue)], cue) {
				for from = i + len(cue); at(s, from) == ' '; from++ {
				}
				break
			}
		}
	}
	if from == 0 {
		return 0, 0
	}
	end := from
	for k, n := from, 0; n < maxNames; n++ {
		e := k
		for e < len(s) && (wordByte(s[e]) || (s[e] == '\'' || s[e] == '-') && e+1 < len(s) && wordByte(s[e+1])) {
			e++
		}
		if e-k == 1 && n > 0 && s[k]-'A' < 26 && (at(s, e) == ' ' || at(s, e) == '.' && at(s, e+1) == ' ') { // an initial
			k = e + 1
			if at(s, e) == '.' {
				k++
			}
			continue
		}
		if e-k < 2 || s[k]-'A' >= 26 && s[k] < 0x80 || at(s, e) == '_' || isDigit(at(s, e)) {
			break // no name, or a token of ours
		}
		end = e
		if at(s, e) != ' ' {
			break
		}
		k = e + 1
	}
	if end == from {
		return 0, 0
	}
	return from, end
}
