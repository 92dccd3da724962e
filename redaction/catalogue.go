package redaction

// entity is an index into the catalogue.
type entity uint8

const (
	emailAddress entity = iota
	creditCard
	ibanCode
	phoneNumber
	jsonWebToken
	privateKey
	secretKey
	urlCredentials
	databaseDSN
	authHeader
	genericSecret
	customRegex
	customDictionary
	usSSN
	usITIN
	usBankNumber
	abaRouting
	usPassport
	usDriverLicense
	usNPI
	usMBI
	medicalLicense
	ukNINO
	ukNHS
	ukDrivingLicence
	ukPassport
	ukPostcode
	ukVehicle
	caSIN
	auTFN
	auABN
	auACN
	auMedicare
	deTaxID
	deSocialSecurity
	deHealthInsurance
	deIDCard
	dePassport
	deVAT
	deBSNR
	deLANR
	deHandelsregister
	dePLZ
	deTaxNumber
	deLicence
	deVehicle
	frNIR
	nlBSN
	beNRN
	ptNIF
	chAHV
	esNIF
	esNIE
	esPassport
	itFiscalCode
	itVAT
	itDriverLicense
	itIdentityCard
	itPassport
	fiHETU
	sePersonnummer
	seOrganisation
	noFNR
	dkCPR
	plPESEL
	trNationalID
	trPlate
	trPhone
	zaID
	thTNIN
	krRRN
	krFRN
	krBRN
	krDriverLicense
	krPassport
	cnResidentID
	sgNRIC
	sgUEN
	jpMyNumber
	brCPF
	brCNPJ
	mxCURP
	clRUT
	arCUIT
	phMobile
	phTIN
	ngNIN
	ngVehicle
	inAadhaar
	inPAN
	inGSTIN
	inVoter
	inPassport
	inVehicle
	ipAddress
	macAddress
	imei
	vin
	cryptoWallet
	urlAddress
	dateOfBirth
	dateTime
	personName
	personAge
	userName
	postalCode
	postalAddress
	organisation
	entityCount
)

// What the tokens of the reversible entities start with.
const (
	shortEmail = "EMAIL"
	shortCard  = "CARD"
	shortIBAN  = "IBAN"
	shortPhone = "PHONE"
)

// entitySet is a set of entities, one bit each. The zero value is empty; sets compare with ==.
type entitySet struct{ lo, hi uint64 }

// The catalogue must fit into the set.
var _ [128 - entityCount]struct{}

// setOf returns the set of the given entities.
func setOf(es ...entity) (s entitySet) {
	for _, e := range es {
		s = s.with(e)
	}
	return s
}

func (s entitySet) has(x entity) bool {
	if x < 64 {
		return s.lo&(1<<x) != 0
	}
	return s.hi&(1<<(x-64)) != 0
}

func (s entitySet) with(x entity) entitySet {
	if x < 64 {
		s.lo |= 1 << x
	} else {
		s.hi |= 1 << (x - 64)
	}
	return s
}

func (s entitySet) without(x entity) entitySet {
	if x < 64 {
		s.lo &^= 1 << x
	} else {
		s.hi &^= 1 << (x - 64)
	}
	return s
}

func (s entitySet) empty() bool { return s.lo|s.hi == 0 }

// meets reports whether the sets share an entity.
func (s entitySet) meets(o entitySet) bool { return s.lo&o.lo|s.hi&o.hi != 0 }

func (s entitySet) or(o entitySet) entitySet { return entitySet{s.lo | o.lo, s.hi | o.hi} }

// anchor says at which sort of place the scanner asks a validator.
type anchor uint8

const (
	atSign     anchor = iota // an '@'; from and to bound it
	digitGroup               // a whole group of digits [from, to)
	keyStart                 // the start of a word inside a run of at least minKeyRun key-like bytes
	pemStart                 // "-----BEGIN"
	hooked                   // none: the scanner's own code finds it at places of several sorts, so the row has no validator
	anchorCount
)

// level is the weakest profile that looks for an entity.
type level uint8

const (
	inBalanced level = iota
	inStrict
	optIn // only where a policy names it
)

// span is a detection in decoded text.
type span struct {
	start, end int
	ent        entity
}

// row is one entity of the catalogue: data plus one validator. At most one of find and head is set, and none when hooked.
type row struct {
	name   string // Presidio's name where it has one
	short  string // what tokens and hashes start with
	label  string // what a mask shows
	score  float64
	level  level
	secret bool // never restorable, whatever a profile says
	anchor anchor
	// find looks around an anchor and returns the span, or from < 0 when there is none.
	find func(s string, from, to int) (start, end int)
	// head decides whether the entity starts exactly at i, looking right only (and at prev, the byte before, 0 at the start
	// of a text). Because it needs no text on the left it also works on streams; see verdict.
	head func(s string, i int, prev byte, more bool) match
}

// catalogue is all we know how to find. A new entity is a constant above, a row here, and its validator.
var catalogue = [entityCount]row{
	emailAddress:      {name: "EMAIL_ADDRESS", short: shortEmail, label: "[EMAIL]", score: 0.95, anchor: atSign, find: findEmail},
	creditCard:        {name: "CREDIT_CARD", short: shortCard, label: "[CARD]", score: 0.9, anchor: hooked},
	ibanCode:          {name: "IBAN_CODE", short: shortIBAN, label: "[IBAN]", score: 1, anchor: digitGroup, find: findIBAN},
	phoneNumber:       {name: "PHONE_NUMBER", short: shortPhone, label: "[PHONE]", score: 0.85, anchor: hooked},
	jsonWebToken:      {name: "JWT", short: "JWT", label: "[JWT]", score: 1, secret: true, anchor: keyStart, head: jwtAt},
	privateKey:        {name: "PRIVATE_KEY", short: "PRIVATE_KEY", label: "[PRIVATE_KEY]", score: 1, secret: true, anchor: pemStart, head: privateKeyAt},
	secretKey:         {name: "SECRET", short: "SECRET", label: "[SECRET]", score: 0.95, secret: true, anchor: keyStart, head: keyAt},
	urlCredentials:    {name: "URL_CREDENTIALS", short: "URLCRED", label: "[URL_PASSWORD]", score: 0.9, secret: true, anchor: hooked},
	databaseDSN:       {name: "DB_DSN", short: "DSN", label: "[DSN_PASSWORD]", score: 0.9, secret: true, anchor: hooked},
	authHeader:        {name: "AUTH_HEADER", short: "AUTH", label: "[CREDENTIALS]", score: 0.9, secret: true, anchor: hooked},
	genericSecret:     {name: "GENERIC_SECRET", short: "GENERICSECRET", label: "[SECRET]", score: 0.9, secret: true, anchor: hooked},
	customRegex:       {name: "CUSTOM_REGEX", short: "CUSTOM", label: "[CUSTOM]", score: 0.9, level: optIn, anchor: hooked},
	customDictionary:  {name: "CUSTOM_DICTIONARY", short: "TERM", label: "[TERM]", score: 0.9, level: optIn, anchor: hooked},
	usSSN:             {name: "US_SSN", short: "SSN", label: "[SSN]", score: 0.9, anchor: hooked},
	usITIN:            {name: "US_ITIN", short: "ITIN", label: "[ITIN]", score: 0.9, anchor: hooked},
	usBankNumber:      {name: "US_BANK_NUMBER", short: "BANK", label: "[BANK_ACCOUNT]", score: 0.9, level: inStrict, anchor: hooked},
	abaRouting:        {name: "ABA_ROUTING_NUMBER", short: "ROUTING", label: "[ROUTING_NUMBER]", score: 0.9, level: inStrict, anchor: hooked},
	usPassport:        {name: "US_PASSPORT", short: "USPASSPORT", label: "[PASSPORT]", score: 0.9, level: inStrict, anchor: hooked},
	usDriverLicense:   {name: "US_DRIVER_LICENSE", short: "USLICENSE", label: "[DRIVER_LICENSE]", score: 0.9, level: inStrict, anchor: hooked},
	usNPI:             {name: "US_NPI", short: "NPI", label: "[NPI]", score: 0.9, level: inStrict, anchor: hooked},
	usMBI:             {name: "US_MBI", short: "MBI", label: "[MBI]", score: 0.9, level: inStrict, anchor: hooked},
	medicalLicense:    {name: "MEDICAL_LICENSE", short: "DEA", label: "[DEA_NUMBER]", score: 0.9, level: inStrict, anchor: hooked},
	ukNINO:            {name: "UK_NINO", short: "NINO", label: "[NINO]", score: 0.9, anchor: hooked},
	ukNHS:             {name: "UK_NHS", short: "NHS", label: "[NHS_NUMBER]", score: 0.8, anchor: hooked},
	ukDrivingLicence:  {name: "UK_DRIVING_LICENCE", short: "UKLICENCE", label: "[DRIVING_LICENCE]", score: 0.9, level: inStrict, anchor: hooked},
	ukPassport:        {name: "UK_PASSPORT", short: "UKPASSPORT", label: "[PASSPORT]", score: 0.9, level: optIn, anchor: hooked},
	ukPostcode:        {name: "UK_POSTCODE", short: "UKPOSTCODE", label: "[POSTCODE]", score: 0.9, level: optIn, anchor: hooked},
	ukVehicle:         {name: "UK_VEHICLE_REGISTRATION", short: "UKPLATE", label: "[PLATE]", score: 0.9, level: optIn, anchor: hooked},
	caSIN:             {name: "CA_SIN", short: "SIN", label: "[SIN]", score: 0.9, anchor: hooked},
	auTFN:             {name: "AU_TFN", short: "TFN", label: "[TFN]", score: 0.9, anchor: hooked},
	auABN:             {name: "AU_ABN", short: "ABN", label: "[ABN]", score: 0.9, level: inStrict, anchor: hooked},
	auACN:             {name: "AU_ACN", short: "ACN", label: "[ACN]", score: 0.9, level: inStrict, anchor: hooked},
	auMedicare:        {name: "AU_MEDICARE", short: "MEDICARE", label: "[MEDICARE]", score: 0.9, anchor: hooked},
	deTaxID:           {name: "DE_TAX_ID", short: "DETAXID", label: "[TAX_ID]", score: 0.9, anchor: hooked},
	deSocialSecurity:  {name: "DE_SOCIAL_SECURITY", short: "DERVNR", label: "[SOCIAL_SECURITY]", score: 0.9, anchor: hooked},
	deHealthInsurance: {name: "DE_HEALTH_INSURANCE", short: "DEKVNR", label: "[HEALTH_INSURANCE]", score: 0.9, anchor: hooked},
	deIDCard:          {name: "DE_ID_CARD", short: "DEIDCARD", label: "[ID_CARD]", score: 0.9, anchor: hooked},
	dePassport:        {name: "DE_PASSPORT", short: "DEPASSPORT", label: "[PASSPORT]", score: 0.9, anchor: hooked},
	deVAT:             {name: "DE_VAT_ID", short: "DEVAT", label: "[VAT_ID]", score: 0.9, anchor: hooked},
	deBSNR:            {name: "DE_BSNR", short: "BSNR", label: "[BSNR]", score: 0.9, level: optIn, anchor: hooked},
	deLANR:            {name: "DE_LANR", short: "LANR", label: "[LANR]", score: 0.9, level: optIn, anchor: hooked},
	deHandelsregister: {name: "DE_HANDELSREGISTER", short: "DEREGISTER", label: "[HANDELSREGISTER]", score: 0.9, level: optIn, anchor: hooked},
	dePLZ:             {name: "DE_PLZ", short: "PLZ", label: "[PLZ]", score: 0.9, level: optIn, anchor: hooked},
	deTaxNumber:       {name: "DE_TAX_NUMBER", short: "DETAXNUMBER", label: "[TAX_NUMBER]", score: 0.9, level: optIn, anchor: hooked},
	deLicence:         {name: "DE_FUEHRERSCHEIN", short: "DELICENCE", label: "[DRIVING_LICENCE]", score: 0.9, level: optIn, anchor: hooked},
	deVehicle:         {name: "DE_KFZ", short: "DEPLATE", label: "[PLATE]", score: 0.9, level: optIn, anchor: hooked},
	frNIR:             {name: "FR_NIR", short: "NIR", label: "[NIR]", score: 0.9, anchor: hooked},
	nlBSN:             {name: "NL_BSN", short: "BSN", label: "[BSN]", score: 0.9, anchor: hooked},
	beNRN:             {name: "BE_NRN", short: "NRN", label: "[NRN]", score: 0.9, anchor: hooked},
	ptNIF:             {name: "PT_NIF", short: "PTNIF", label: "[NIF]", score: 0.9, anchor: hooked},
	chAHV:             {name: "CH_AHV", short: "AHV", label: "[AHV]", score: 0.9, anchor: hooked},
	esNIF:             {name: "ES_NIF", short: "ESNIF", label: "[NIF]", score: 0.9, anchor: hooked},
	esNIE:             {name: "ES_NIE", short: "ESNIE", label: "[NIE]", score: 0.9, anchor: hooked},
	esPassport:        {name: "ES_PASSPORT", short: "ESPASSPORT", label: "[PASSPORT]", score: 0.9, level: inStrict, anchor: hooked},
	itFiscalCode:      {name: "IT_FISCAL_CODE", short: "ITFISCAL", label: "[FISCAL_CODE]", score: 0.9, anchor: hooked},
	itVAT:             {name: "IT_VAT_CODE", short: "ITVAT", label: "[VAT_ID]", score: 0.9, level: inStrict, anchor: hooked},
	itDriverLicense:   {name: "IT_DRIVER_LICENSE", short: "ITLICENCE", label: "[DRIVING_LICENCE]", score: 0.9, level: inStrict, anchor: hooked},
	itIdentityCard:    {name: "IT_IDENTITY_CARD", short: "ITIDCARD", label: "[ID_CARD]", score: 0.9, level: inStrict, anchor: hooked},
	itPassport:        {name: "IT_PASSPORT", short: "ITPASSPORT", label: "[PASSPORT]", score: 0.9, level: inStrict, anchor: hooked},
	fiHETU:            {name: "FI_PERSONAL_IDENTITY_CODE", short: "HETU", label: "[PERSONAL_ID]", score: 0.9, anchor: hooked},
	sePersonnummer:    {name: "SE_PERSONNUMMER", short: "PERSONNUMMER", label: "[PERSONAL_ID]", score: 0.9, anchor: hooked},
	seOrganisation:    {name: "SE_ORGANISATIONSNUMMER", short: "SEORGNR", label: "[ORGANISATION_NUMBER]", score: 0.9, anchor: hooked},
	noFNR:             {name: "NO_FODSELSNUMMER", short: "FNR", label: "[PERSONAL_ID]", score: 0.9, anchor: hooked},
	dkCPR:             {name: "DK_CPR", short: "CPR", label: "[PERSONAL_ID]", score: 0.9, anchor: hooked},
	plPESEL:           {name: "PL_PESEL", short: "PESEL", label: "[PERSONAL_ID]", score: 0.9, anchor: hooked},
	trNationalID:      {name: "TR_NATIONAL_ID", short: "TCKN", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	trPlate:           {name: "TR_LICENSE_PLATE", short: "TRPLATE", label: "[PLATE]", score: 0.9, level: optIn, anchor: hooked},
	trPhone:           {name: "TR_PHONE_NUMBER", short: "TRPHONE", label: "[PHONE]", score: 0.8, level: inStrict, anchor: hooked},
	zaID:              {name: "ZA_ID_NUMBER", short: "ZAID", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	thTNIN:            {name: "TH_TNIN", short: "TNIN", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	krRRN:             {name: "KR_RRN", short: "RRN", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	krFRN:             {name: "KR_FRN", short: "FRN", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	krBRN:             {name: "KR_BRN", short: "BRN", label: "[BUSINESS_NUMBER]", score: 0.9, level: inStrict, anchor: hooked},
	krDriverLicense:   {name: "KR_DRIVER_LICENSE", short: "KRLICENCE", label: "[DRIVER_LICENSE]", score: 0.9, level: inStrict, anchor: hooked},
	krPassport:        {name: "KR_PASSPORT", short: "KRPASSPORT", label: "[PASSPORT]", score: 0.9, level: inStrict, anchor: hooked},
	cnResidentID:      {name: "CN_RESIDENT_ID", short: "CNID", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	sgNRIC:            {name: "SG_NRIC_FIN", short: "NRIC", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	sgUEN:             {name: "SG_UEN", short: "UEN", label: "[BUSINESS_NUMBER]", score: 0.9, level: inStrict, anchor: hooked},
	jpMyNumber:        {name: "JP_MY_NUMBER", short: "MYNUMBER", label: "[NATIONAL_ID]", score: 0.9, anchor: hooked},
	brCPF:             {name: "BR_CPF", short: "CPF", label: "[CPF]", score: 0.9, anchor: hooked},
	brCNPJ:            {name: "BR_CNPJ", short: "CNPJ", label: "[CNPJ]", score: 0.9, anchor: hooked},
	mxCURP:            {name: "MX_CURP", short: "CURP", label: "[CURP]", score: 0.9, anchor: hooked},
	clRUT:             {name: "CL_RUT", short: "RUT", label: "[RUT]", score: 0.9, anchor: hooked},
	arCUIT:            {name: "AR_CUIT", short: "CUIT", label: "[CUIT]", score: 0.9, anchor: hooked},
	phMobile:          {name: "PH_MOBILE_NUMBER", short: "PHMOBILE", label: "[PHONE]", score: 0.8, level: inStrict, anchor: hooked},
	phTIN:             {name: "PH_TIN", short: "PHTIN", label: "[TIN]", score: 0.9, level: inStrict, anchor: hooked},
	ngNIN:             {name: "NG_NIN", short: "NIN", label: "[NATIONAL_ID]", score: 0.9, level: inStrict, anchor: hooked},
	ngVehicle:         {name: "NG_VEHICLE_REGISTRATION", short: "NGPLATE", label: "[PLATE]", score: 0.9, level: optIn, anchor: hooked},
	inAadhaar:         {name: "IN_AADHAAR", short: "AADHAAR", label: "[AADHAAR]", score: 0.9, anchor: hooked},
	inPAN:             {name: "IN_PAN", short: "PAN", label: "[PAN]", score: 0.9, anchor: hooked},
	inGSTIN:           {name: "IN_GSTIN", short: "GSTIN", label: "[GSTIN]", score: 0.9, anchor: hooked},
	inVoter:           {name: "IN_VOTER", short: "INVOTER", label: "[VOTER_ID]", score: 0.9, level: inStrict, anchor: hooked},
	inPassport:        {name: "IN_PASSPORT", short: "INPASSPORT", label: "[PASSPORT]", score: 0.9, level: inStrict, anchor: hooked},
	inVehicle:         {name: "IN_VEHICLE_REGISTRATION", short: "INPLATE", label: "[PLATE]", score: 0.9, level: optIn, anchor: hooked},
	ipAddress:         {name: "IP_ADDRESS", short: "IPADDRESS", label: "[IP]", score: 0.9, level: inStrict, anchor: hooked},
	macAddress:        {name: "MAC_ADDRESS", short: "MACADDRESS", label: "[MAC]", score: 0.9, level: inStrict, anchor: hooked},
	imei:              {name: "IMEI", short: "IMEI", label: "[IMEI]", score: 0.9, level: inStrict, anchor: hooked},
	vin:               {name: "VIN", short: "VIN", label: "[VIN]", score: 0.9, level: inStrict, anchor: hooked},
	cryptoWallet:      {name: "CRYPTO", short: "WALLET", label: "[WALLET]", score: 0.9, anchor: hooked},
	urlAddress:        {name: "URL", short: "URL", label: "[URL]", score: 0.9, level: optIn, anchor: hooked},
	dateOfBirth:       {name: "DATE_OF_BIRTH", short: "DOB", label: "[DATE_OF_BIRTH]", score: 0.9, level: inStrict, anchor: hooked},
	dateTime:          {name: "DATE_TIME", short: "DATE", label: "[DATE]", score: 0.9, level: optIn, anchor: hooked},
	personName:        {name: "PERSON", short: "PERSON", label: "[PERSON]", score: 0.9, level: optIn, anchor: hooked},
	personAge:         {name: "AGE", short: "AGE", label: "[AGE]", score: 0.7, level: optIn, anchor: hooked},
	userName:          {name: "USERNAME", short: "USERNAME", label: "[USERNAME]", score: 0.7, level: optIn, anchor: hooked},
	postalCode:        {name: "POSTCODE", short: "POSTCODE", label: "[POSTCODE]", score: 0.7, level: optIn, anchor: hooked},
	postalAddress:     {name: "ADDRESS", short: "ADDRESS", label: "[ADDRESS]", score: 0.7, level: optIn, anchor: hooked},
	organisation:      {name: "ORGANIZATION", short: "ORG", label: "[ORGANIZATION]", score: 0.7, level: optIn, anchor: hooked},
}

// anchored lists the entities of each anchor, in catalogue order.
var anchored = func() (t [anchorCount][]entity) {
	for e := entity(0); e < entityCount; e++ {
		a := catalogue[e].anchor
		if a == hooked {
			continue
		}
		t[a] = append(t[a], e)
	}
	return t
}()

// verdict is a head validator's answer.
type verdict uint8

const (
	no        verdict = iota // and no continuation of the text changes that
	yes                      // [i, end), and no continuation changes that
	undecided                // more text is needed; only when the caller said that more may come
	open                     // yes from i to the end of the text and on for as long as bytes of keep follow
)

// match is a head validator's verdict with its details.
type match struct {
	v      verdict
	end    int
	keep   uint8 // open: key classes that go on being part of the span
	strong bool  // undecided: so much has matched that the text must not get out unmasked if nothing more comes
}
