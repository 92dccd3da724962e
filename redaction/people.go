package redaction

import (
	"strings"
	"unicode/utf8"
)

// What is told by the words around it only: ages, user names, postal codes, addresses and organisations. All of it is best effort and
// opt-in: the forms are those of some languages, and what has none of them passes.

// cued are the entities this file looks for.
var cued = setOf(personAge, userName, postalCode, postalAddress, organisation)

// cue looks at the word that begins at i, and returns where the widest value found ends, or 0.
func (sc *scanner) cue(s string, i int, on entitySet) int {
	best, ent := [2]int{}, entity(0)
	try := func(e entity, find func(string, int) (int, int)) {
		if on.has(e) {
			if start, end := find(s, i); end > best[1] {
				best, ent = [2]int{start, end}, e
			}
		}
	}
	if isDigit(s[i]) {
		try(personAge, ageAt)
		try(postalAddress, houseFirst)
	} else {
		try(userName, userNameAfter)
		try(postalCode, postalCodeAfter)
		try(postalAddress, streetFirst)
		try(postalAddress, boxAt)
		if s[i]-'A' < 26 {
			try(organisation, organisationAt)
		}
	}
	if best[1] > 0 {
		sc.add(ent, best[0], best[1])
	}
	return best[1]
}

// owned looks at a whole text as the value of sc.key.
func (sc *scanner) owned(s string, on entitySet) {
	whole := strings.TrimSpace(s)
	if whole == "" || len(whole) > maxRow {
		return
	}
	start := strings.Index(s, whole)
	key := strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(sc.key))
	for e, ok := range map[entity]bool{
		personAge:     (key == "age" || key == "alter" || key == "edad") && ageDigits(whole, 0) == len(whole),
		userName:      (key == "username" || key == "login" || key == "userid" || key == "screenname" || key == "nickname") && nameEnd(whole, 0) == len(whole),
		postalCode:    (key == "zip" || key == "zipcode" || key == "postcode" || key == "postalcode" || key == "plz") && codeEnd(whole, 0) == len(whole),
		postalAddress: (key == "address" || key == "street" || key == "streetaddress" || key == "addressline1" || key == "addressline2") && len(whole) <= 200 && digitsIn(whole) > 0,
		organisation:  (key == "company" || key == "organization" || key == "organisation" || key == "employer") && len(whole) <= maxColumn*2 && isLetter(whole[0]),
	} {
		if ok && on.has(e) && hiddenBefore(whole, len(whole)) == len(whole) {
			sc.add(e, start, start+len(whole))
		}
	}
}

// lower is up to n bytes of s from i on in lower case, whatever is not ASCII as it is.
func lower(s string, i, n int) string {
	return strings.ToLower(s[i:min(len(s), i+n)])
}

// ageDigits returns the end of a number of years a person may count at i, or 0.
func ageDigits(s string, i int) int {
	j := i
	for j-i < 4 && isDigit(at(s, j)) {
		j++
	}
	if j == i || s[i] == '0' || isAlnum(at(s, j)) || digitsValue(s, i, j) > 120 {
		return 0
	}
	return j
}

var (
	agesBehind = []string{"year old", "years old", "year-old", "years-old", "years of age", "yr old", "yrs old", "y/o", "y.o.", "jahre alt", "jahre jung", "anni", "a\u00f1os de edad"}
	agesBefore = []string{"age of", "aged", "age", "age is", "turned", "turning", "turn", "turns", "im alter von", "alter", "edad", "\u00e2g\u00e9 de", "\u00e2g\u00e9e de"}
)

// ageAt takes the years at i where the words around them say that they are somebody's.
func ageAt(s string, i int) (int, int) {
	end := ageDigits(s, i)
	if end == 0 || joinedLeft(s, i) || at(s, end) == '.' && isDigit(at(s, end+1)) {
		return 0, 0
	}
	if rest := lower(s, end, 20); rest != "" && (rest[0] == ' ' || rest[0] == '-') {
		for _, w := range agesBehind {
			if strings.HasPrefix(rest[1:], w) {
				return i, end
			}
		}
	}
	const reach = 20
	left := strings.TrimRight(strings.ToLower(s[max(0, i-reach):i]), " :=\"'")
	for _, w := range agesBefore {
		if k := len(left) - len(w); k >= 0 && left[k:] == w && len(left) < min(i, reach) && !wordByte(before(left, k)) && before(left, k) != '_' {
			return i, end
		}
	}
	return 0, 0
}

// afterCue returns where the value behind one of the words at i begins, or 0. Between them stands a colon, an equals sign or "is", and
// nothing but a space where the word alone says enough.
func afterCue(s string, i int, cues []string, bare bool) int {
	head := lower(s, i, 24)
	for _, c := range cues {
		if !strings.HasPrefix(head, c) || wordByte(at(s, i+len(c))) || isDigit(at(s, i+len(c))) || at(s, i+len(c)) == '_' {
			continue
		}
		j, said := i+len(c), bare
		for end := min(len(s), j+8); j < end; {
			switch b := s[j]; {
			case b == ' ' || b == '\t' || b == '"' || b == '\'' || b == '`' || b == '*':
				j++
				continue
			case b == ':' || b == '=':
				said = true
				j++
				continue
			case !said && strings.HasPrefix(s[j:], "is ") || bare && strings.HasPrefix(s[j:], "is "):
				said = true
				j += 2
				continue
			}
			break
		}
		if said && j > i+len(c) && j < len(s) {
			return j
		}
	}
	return 0
}

var userNameCues = []string{"username", "user name", "user_name", "login name", "login", "user id", "userid", "user_id", "screen name", "screen_name", "nickname", "handle", "benutzername", "nom d'utilisateur", "nombre de usuario", "usuario"}

// noUserNames are what stands where a user name would.
var noUserNames = setOfWords("the your you not and true false null none nil string required optional invalid missing unknown empty user username password login name here this that too already taken")

func setOfWords(list string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		m[w] = true
	}
	return m
}

// userNameAfter takes the user name behind a word for one at i.
func userNameAfter(s string, i int) (int, int) {
	from := afterCue(s, i, userNameCues, false)
	if from == 0 {
		return 0, 0
	}
	if s[from] == '@' {
		from++
	}
	end := nameEnd(s, from)
	if end == 0 || bodyFollows(s, end) || noUserNames[strings.ToLower(s[from:end])] {
		return 0, 0
	}
	return from, end
}

// nameEnd returns the end of the user name at i, or 0.
func nameEnd(s string, i int) int {
	const least, most = 3, 32
	j := i
	for j < len(s) && j-i <= most && (isAlnum(s[j]) || s[j] == '_' || s[j] == '.' || s[j] == '-') {
		j++
	}
	for j > i && (s[j-1] == '.' || s[j-1] == '-') {
		j--
	}
	if j-i < least || j-i > most || at(s, j) == '@' || at(s, j) == '(' || wordByte(at(s, j)) || bodyFollows(s, i+strings.IndexByte(s[i:j]+"_", '_')) {
		return 0
	}
	return j
}

var postalCodeCues = []string{"zip code", "zipcode", "zip", "postcode", "post code", "postal code", "plz", "postleitzahl", "code postal", "c\u00f3digo postal", "codice postale", "postnummer", "postinumero"}

// postalCodeAfter takes the postal code behind a word for one at i.
func postalCodeAfter(s string, i int) (int, int) {
	from := afterCue(s, i, postalCodeCues, true)
	if from == 0 {
		return 0, 0
	}
	end := codeEnd(s, from)
	if end == 0 {
		return 0, 0
	}
	return from, end
}

// codeEnd returns the end of the postal code at i, or 0: three to five characters with a digit, and perhaps a second group.
func codeEnd(s string, i int) int {
	group := func(i, least, most int) int {
		j := i
		for j < len(s) && j-i <= most && (isDigit(s[j]) || s[j]-'A' < 26) {
			j++
		}
		if j-i < least || j-i > most || wordByte(at(s, j)) || at(s, j) == '_' {
			return 0
		}
		return j
	}
	end := group(i, 2, 6)
	if end == 0 {
		return 0
	}
	if b := at(s, end); b == ' ' || b == '-' {
		if e := group(end+1, 2, 4); e > 0 && digitsIn(s[end:e]) > 0 && (b == '-' || end-i <= 4) {
			end = e
		}
	}
	if end-i < 3 || digitsIn(s[i:end]) == 0 || end-i > 4 && digitsIn(s[i:end]) < 2 {
		return 0
	}
	return end
}

var (
	// streetEnds end an English street's name.
	streetEnds = setOfWords("street st avenue ave road rd boulevard blvd lane ln drive dr court ct square sq terrace place pl highway hwy parkway pkwy crescent close mews gardens grove row way walk hill alley circle trail")
	// streetHeads begin a street's name in Romance and Slavic languages.
	streetHeads = setOfWords("rue avenue boulevard quai via viale corso piazza piazzetta vicolo largo calle avenida paseo plaza carrera rua r\u00faa travessa estrada pra\u00e7a strada ulica ul aleja plac")
	// streetTails end the first word of a German, Dutch or Nordic street.
	streetTails = []string{"stra\u00dfe", "strasse", "str", "gasse", "weg", "platz", "allee", "damm", "ufer", "ring", "laan", "straat", "plein", "gracht", "kade", "vej", "veien", "vegen", "gata", "gatan", "gade", "v\u00e4gen", "katu", "kuja", "polku", "stien", "braut"}
	// small stand in a street's name in small letters.
	small = setOfWords("de la le les del della delle dei di da do dos das du des el los las von van der den of the y e")
	// parts of a house.
	rooms = setOfWords("apt apartment suite ste flat")
)

// lettersEnd returns the end of the word at i, which may hold any letters, and an apostrophe or a dash between two.
func lettersEnd(s string, i int) int {
	j := i
	for j < len(s) && (wordByte(s[j]) || (s[j] == '\'' || s[j] == '-') && j > i && j+1 < len(s) && wordByte(s[j+1])) {
		j++
	}
	return j
}

// capital reports whether a word begins with a capital letter, or with one of a script beyond ASCII.
func capital(w string) bool { return w != "" && (w[0]-'A' < 26 || w[0] >= utf8.RuneSelf) }

// house returns the end of a house's number at i, or 0.
func house(s string, i int) int {
	j := i
	for j-i < 6 && isDigit(at(s, j)) {
		j++
	}
	if j == i || isDigit(at(s, j)) {
		return 0
	}
	if isLetter(at(s, j)) && !isAlnum(at(s, j+1)) {
		j++
	}
	if isAlnum(at(s, j)) || at(s, j) == '_' || at(s, j) == '%' || (at(s, j) == '.' || at(s, j) == ':' || at(s, j) == '-') && isAlnum(at(s, j+1)) {
		return 0
	}
	return j
}

// houseFirst takes an address as English has it: 221B Baker Street, Apt. 3.
func houseFirst(s string, i int) (int, int) {
	j := house(s, i)
	if j == 0 || joinedLeft(s, i) || at(s, j) != ' ' {
		return 0, 0
	}
	const most = 4
	for n := 0; n < most && at(s, j) == ' '; n++ {
		e := lettersEnd(s, j+1)
		w := s[j+1 : e]
		if !capital(w) || at(s, e) == '_' {
			return 0, 0
		}
		j = e
		if n > 0 && streetEnds[strings.ToLower(w)] {
			if at(s, j) == '.' && len(w) <= 4 && at(s, j+1) != '\n' && j+1 < len(s) && at(s, j+1) != ' ' {
				j++
			}
			return i, room(s, j)
		}
		if at(s, j) == '.' {
			j++
		}
	}
	return 0, 0
}

// room returns the end of what follows an address at i of its flat, or i.
func room(s string, i int) int {
	j := i
	for k := 0; k < 4 && (at(s, j) == ',' || at(s, j) == ' ' || at(s, j) == '.'); k++ {
		j++
	}
	if j > i {
		if _, e := roomAt(s, j); e > 0 {
			return e
		}
	}
	return i
}

// roomAt takes the number of a flat: Apt. 12, Suite 400.
func roomAt(s string, i int) (int, int) {
	e := lettersEnd(s, i)
	if !rooms[strings.ToLower(s[i:e])] || !capital(s[i:e]) {
		return 0, 0
	}
	if at(s, e) == '.' {
		e++
	}
	if at(s, e) != ' ' {
		return 0, 0
	}
	if j := house(s, e+1); j > 0 {
		return i, j
	}
	return 0, 0
}

// streetFirst takes an address whose street comes before the house: Rue de la Paix 12, Hauptstra\u00dfe 5, and flats that stand alone.
func streetFirst(s string, i int) (int, int) {
	e := lettersEnd(s, i)
	w := strings.ToLower(s[i:e])
	if rooms[w] {
		return roomAt(s, i)
	}
	if !capital(s[i:e]) && w != "ul" {
		return 0, 0
	}
	if !streetHeads[w] {
		for _, tail := range streetTails {
			if len(w) > len(tail)+1 && strings.HasSuffix(w, tail) || w == "str" {
				if at(s, e) == '.' {
					e++
				}
				if at(s, e) == ' ' {
					if j := house(s, e+1); j > 0 {
						return i, room(s, j)
					}
				}
				return 0, 0
			}
		}
		return 0, 0
	}
	if at(s, e) == '.' {
		e++
	}
	const most = 6
	for n := 0; n < most; n++ {
		if at(s, e) == ',' && n > 0 {
			e++
		}
		if at(s, e) != ' ' {
			return 0, 0
		}
		e++
		if j := house(s, e); j > 0 && n > 0 {
			return i, room(s, j)
		}
		k := lettersEnd(s, e)
		if !capital(s[e:k]) && !small[s[e:k]] || at(s, k) == '_' {
			return 0, 0
		}
		e = k
		if at(s, e) == '.' {
			e++
		}
	}
	return 0, 0
}

// boxAt takes a post-office box.
func boxAt(s string, i int) (int, int) {
	head := lower(s, i, 10)
	for _, b := range []string{"p.o. box ", "po box ", "p.o.box ", "postfach "} {
		if strings.HasPrefix(head, b) {
			if j := house(s, i+len(b)); j > 0 {
				return i, j
			}
		}
	}
	return 0, 0
}

var (
	// legalForms end the name of a company.
	legalForms = setOfWords("inc incorporated ltd limited llc llp plc corp corporation gmbh ag kg se oy ab aps sarl srl spa bv nv pty sas holdings")
	// articles stand before a name and belong to none.
	articles = setOfWords("the a an at in from for by with and but our when if as of to is was on or we i it this that")
)

// organisationAt takes the name of a company that says its legal form.
func organisationAt(s string, i int) (int, int) {
	const most = 6
	j := i
	for n := 0; n < most; n++ {
		e := lettersEnd(s, j)
		w := strings.ToLower(s[j:e])
		if n == 0 && articles[w] || !capital(s[j:e]) && !(n > 0 && (w == "and" || w == "of" || s[j:e] == "" && at(s, j) == '&')) || at(s, e) == '_' || isDigit(at(s, e)) {
			return 0, 0
		}
		if s[j:e] == "" {
			e = j + 1
		}
		if n > 0 && legalForms[w] {
			if at(s, e) == '.' && (w == "inc" || w == "ltd" || w == "corp") {
				e++
			}
			return i, e
		}
		if at(s, e) == ',' && legalForms[strings.ToLower(s[min(len(s), e+2):lettersEnd(s, min(len(s), e+2))])] {
			e++
		}
		if at(s, e) != ' ' {
			return 0, 0
		}
		j = e + 1
	}
	return 0, 0
}
