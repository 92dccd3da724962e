package redaction

import "strings"

// position is who says a text in a request, or what it is to the model.
type position uint8

const (
	posSame  position = iota // as around it
	posOther                 // nobody we know: treated as the strictest
	posSystem
	posUser
	posAssistant
	posToolDefinition
	posToolArgs
	posToolResult
	posRetrieved
	posCount
)

var positionNames = [posCount]string{"other", "other", "system", "user", "assistant_history", "tool_definition", "tool_args", "tool_result", "retrieved"}

func (p position) String() string { return positionNames[p] }

// operator reports whether the text comes from who runs the app rather than who talks in it.
func (p position) operator() bool { return p == posSystem || p == posToolDefinition }

// treatment is what is done with the strings of a field.
type treatment uint8

const (
	scanned    treatment = iota // text; also what a field has that nobody classified
	never                       // not touched, nor anything in it
	structural                  // strings are not touched: ids, roles, words of the protocol; a container is something we do not know, so it is scanned
	reasoning                   // not touched when it is signed: the provider checks it; else text
	media                       // a URL, or a data: URL of which only text is looked into
	encoded                     // base64 when the object beside it says so; only what decodes to text is looked into
	nested                      // a JSON document in a string
	beside                      // what goes when the text beside it changes: it repeats the text in another form
)

// field says what a member of an object is.
type field struct {
	is    treatment
	to    place // of the value
	pos   position
	keyed bool // the key itself is somebody's choice
}

// place says what the value at hand is, and so which strings in it are text.
type place uint8

const (
	placeAny     place = iota // unknown: every string is text but ids, types and opaque data
	placeNever                //
	placeInput                // arguments and results of tools: every value is text, whatever its key
	placeSchema               // a JSON Schema: descriptions and examples are text, keys and enums are not
	placeSchemas              // an object whose keys are names and whose values are schemas
	placeNamed                // an object that names a tool

	placeClaude // the request or response of the Messages API
	placeMetadata
	placeMessages
	placeMessage
	placeContent // string, block, or array of blocks
	placeBlock
	placeSource // of a document, an image or a search result
	placeTools
	placeTool

	placeChat // the request or response of Chat Completions
	placeChatMessages
	placeChatMessage
	placeChatContent
	placeChatPart
	placeChatFile
	placeChatCalls
	placeChatCall
	placeChatFunction
	placeChatTools
	placeChatTool
	placeChatFormat
	placeChatChoices
	placeChatChoice

	placeResponses // the request or response of the Responses API
	placeItems
	placeItem
	placeItemContent
	placeItemPart
	placeItemTools
	placeItemTool

	placeEmbeddings

	placeEvent // one event of a stream, of whatever protocol

	placeGemini // generateContent, countTokens, embedContent
	placeGeminiRequests
	placeGeminiContents
	placeGeminiContent
	placeGeminiParts
	placeGeminiPart
	placeGeminiBlob
	placeGeminiCall
	placeGeminiResult
	placeGeminiTools
	placeGeminiTool
	placeGeminiFunctions
	placeGeminiFunction
	placeGeminiConfig
	placeGeminiCandidates
	placeGeminiCandidate

	placeConverse
	placeConverseMessages
	placeConverseMessage
	placeConverseContent
	placeConverseBlock
	placeConverseReasoning
	placeConverseReasoningText
	placeConverseFile
	placeConverseSource
	placeConverseToolUse
	placeConverseToolResult
	placeConverseTools
	placeConverseToolList
	placeConverseTool
	placeConverseToolSpec
	placeConverseSchema

	placeCount
)

// shape is one sort of object: what its members are, and what is known of containers around it.
type shape struct {
	fields  map[string]field
	other   field // a member that stands in no table
	element place // of an array at this place; placeAny: the same
	object  place // of an object at this place, when the place is a list or content; placeAny: the same
	peek    bool  // the object says what it is
	speaks  bool  // and who speaks
	strict  bool  // no member is structural by its name alone
}

// What stands in many tables.
var (
	asText   = field{is: scanned}
	asOpaque = field{is: never, to: placeNever}
	asID     = field{is: structural}
	asSchema = field{is: scanned, to: placeSchema}
	asInput  = field{is: scanned, to: placeInput, pos: posToolArgs, keyed: true}
	asResult = field{is: scanned, to: placeInput, pos: posToolResult, keyed: true}
)

// structuralKeys are the words of protocols that mean the same wherever they stand.
var structuralKeys = map[string]bool{
	"type": true, "id": true, "role": true, "model": true, "signature": true, "media_type": true, "mimeType": true, "mime_type": true, "object": true,
	"status": true, "encrypted_content": true, "encrypted_index": true, "encrypted_stdout": true, "thoughtSignature": true, "thought_signature": true,
	"system_fingerprint": true, "finish_reason": true, "finishReason": true, "stop_reason": true,
	// The credential a caller gives the provider for an MCP server: hiding it would break what it is for.
	"authorization_token": true,
}

// member is what a member of an object at p is; str says that its value is a string.
func (p place) member(key string, saw sight, str bool) field {
	s := &shapes[p]
	f, known := s.fields[key]
	switch {
	case known:
	case p == placeNever:
		return asOpaque
	case s.strict:
		f = s.other
	case key == "cache_control", key == "cachePoint":
		return asOpaque
	case key == "schema":
		return asSchema
	case str && (structuralKeys[key] || strings.HasSuffix(key, "_id")):
		return asID
	default:
		f = s.other
	}
	switch f.is {
	case structural:
		if !str {
			return field{is: scanned, to: f.to, pos: f.pos}
		}
	case reasoning:
		f.is = scanned
		if str && (saw.kind == `"redacted_thinking"` || saw.signed && (saw.kind == `"thinking"` || saw.kind == `"reasoning"` || saw.kind == `"reasoning.text"` || saw.kind == `"reasoning.encrypted"` || p == placeConverseReasoningText)) {
			f.is = never
		}
		if !str && saw.signed && saw.kind == `"reasoning"` {
			return asOpaque
		}
	case encoded:
		if p == placeSource && saw.kind != `"base64"` {
			f.is = scanned
		}
	case nested:
		if !str {
			f.is, f.to = scanned, placeInput
		}
	}
	return f
}

// shapes is what we know of bodies, route by route. A member that stands here is classified; any other is scanned.
var shapes = [placeCount]shape{
	placeAny:   {other: field{keyed: true}},
	placeInput: {strict: true, other: field{to: placeInput, keyed: true}},
	placeSchema: {strict: true, other: asSchema, fields: map[string]field{
		"properties": {to: placeSchemas}, "patternProperties": {to: placeSchemas}, "$defs": {to: placeSchemas}, "definitions": {to: placeSchemas}, "dependentSchemas": {to: placeSchemas},
		"enum": asOpaque, "const": asOpaque, "required": asOpaque, "dependentRequired": asOpaque, "propertyOrdering": asOpaque,
		"default": {to: placeInput}, "examples": {to: placeInput}, "example": {to: placeInput},
		"type": {is: structural, to: placeSchema}, "format": {is: structural, to: placeSchema}, "pattern": {is: structural, to: placeSchema}, "$ref": {is: structural, to: placeSchema},
		"$id": {is: structural, to: placeSchema}, "$schema": {is: structural, to: placeSchema}, "$anchor": {is: structural, to: placeSchema},
		"contentEncoding": {is: structural, to: placeSchema}, "contentMediaType": {is: structural, to: placeSchema},
	}},
	placeSchemas: {strict: true, other: asSchema},
	placeNamed: {fields: map[string]field{"type": asID, "name": asID, "function": {to: placeNamed}, "custom": {to: placeNamed}, "disable_parallel_tool_use": asText, "mode": asID, "tools": asText,
		"functionCallingConfig": {to: placeNamed}, "allowedFunctionNames": asText, "retrievalConfig": asText}},

	// Anthropic Messages.
	placeClaude: {fields: map[string]field{
		"system": {to: placeContent, pos: posSystem}, "content": {to: placeContent, pos: posAssistant}, "messages": {to: placeMessages}, "tools": {to: placeTools, pos: posToolDefinition},
		"metadata": {to: placeMetadata}, "model": asID, "max_tokens": asText, "stream": asText, "temperature": asText, "top_p": asText, "top_k": asText, "stop_sequences": asText,
		"tool_choice": {to: placeNamed}, "thinking": asText, "output_config": asText, "output_format": asText, "service_tier": asID, "speed": asID, "inference_geo": asID, "container": asText,
		"diagnostics": asText, "mcp_servers": asText, "context_management": asText, "compaction": asText, "fallbacks": asText, "cache_control": asOpaque,
		"type": asID, "id": asID, "role": asID, "stop_reason": asID, "stop_sequence": asID, "usage": asText,
	}},
	placeMetadata: {strict: true, other: asText}, // user_id too: clients put addresses there, and other protocols' user becomes it
	placeMessages: {element: placeMessage},
	placeMessage:  {peek: true, speaks: true, fields: map[string]field{"content": {to: placeContent}, "role": asID}},
	placeContent:  {element: placeBlock, object: placeBlock},
	placeBlock: {peek: true, fields: map[string]field{
		"type": asID, "text": asText, "id": asID, "tool_use_id": asID, "name": asID, "tool_name": asID, "signature": asID, "cache_control": asOpaque,
		"content": {to: placeContent, pos: posSame}, "input": asInput, "source": {is: scanned, to: placeSource},
		"thinking": {is: reasoning}, "data": {is: reasoning}, "title": asText, "context": asText, "citations": asText, "is_error": asText, "caller": asText, "transformations": asText,
	}},
	placeSource: {peek: true, fields: map[string]field{
		"type": asID, "media_type": asID, "content": {to: placeContent}, "data": {is: encoded}, "url": {is: media}, "file_id": asID,
	}},
	placeTools: {element: placeTool},
	placeTool: {fields: map[string]field{
		"name": asID, "type": asID, "description": asText, "input_schema": asSchema, "input_examples": {to: placeInput}, "cache_control": asOpaque, "strict": asText,
		"defer_loading": asText, "eager_input_streaming": asText, "allowed_callers": asText, "max_uses": asText, "allowed_domains": asText, "blocked_domains": asText, "user_location": asText,
		"mcp_server_name": asID, "default_config": asText, "configs": asText,
	}},

	// OpenAI Chat Completions.
	placeChat: {fields: map[string]field{
		"messages": {to: placeChatMessages}, "tools": {to: placeChatTools, pos: posToolDefinition}, "functions": {to: placeItemTools, pos: posToolDefinition}, "tool_choice": {to: placeNamed}, "function_call": {to: placeNamed},
		"response_format": {to: placeChatFormat}, "model": asID, "stream": asText, "stream_options": asText, "max_tokens": asText, "max_completion_tokens": asText, "temperature": asText, "top_p": asText, "n": asText,
		"stop": asText, "seed": asText, "user": asText, "metadata": asText, "logprobs": asText, "top_logprobs": asText, "logit_bias": asText, "presence_penalty": asText, "frequency_penalty": asText,
		"parallel_tool_calls": asText, "prediction": {to: placeChatMessage}, "modalities": asText, "audio": asText, "reasoning_effort": asID, "service_tier": asID, "store": asText, "verbosity": asID,
		"web_search_options": asText, "safety_identifier": asText, "prompt_cache_key": asText, "prompt_cache_retention": asID, "prompt_cache_options": asText, "moderation": asText,
		"choices": {to: placeChatChoices}, "id": asID, "object": asID, "created": asText, "system_fingerprint": asID, "usage": asText,
	}},
	placeChatMessages: {element: placeChatMessage},
	placeChatMessage: {peek: true, speaks: true, fields: map[string]field{
		"role": asID, "content": {to: placeChatContent}, "name": asText, "tool_call_id": asID, "tool_calls": {to: placeChatCalls}, "function_call": {to: placeChatFunction}, "refusal": asText,
		"audio": asText, "annotations": asText, "reasoning": asText, "reasoning_content": asText, "reasoning_details": {to: placeBlock}, "type": asID,
	}},
	placeChatContent: {element: placeChatPart, object: placeChatPart},
	placeChatPart: {peek: true, fields: map[string]field{
		"type": asID, "text": asText, "refusal": asText, "image_url": {is: media, to: placeChatFile}, "input_audio": {to: placeChatFile}, "file": {to: placeChatFile}, "cache_control": asOpaque,
		"thinking": asText,
	}},
	placeChatFile: {fields: map[string]field{
		"url": {is: media}, "detail": asID, "data": {is: encoded}, "format": asID, "file_data": {is: media}, "filename": asText, "file_id": asID,
	}},
	placeChatCalls: {element: placeChatCall},
	placeChatCall:  {fields: map[string]field{"id": asID, "type": asID, "index": asText, "function": {to: placeChatFunction}, "custom": {to: placeChatFunction}}},
	placeChatFunction: {fields: map[string]field{
		"name": asID, "arguments": {is: nested, pos: posToolArgs, keyed: true}, "input": {pos: posToolArgs}, "thought_signature": asID,
	}},
	placeChatTools: {element: placeChatTool},
	placeChatTool:  {fields: map[string]field{"type": asID, "function": {to: placeItemTool}, "custom": {to: placeItemTool}, "cache_control": asOpaque}},
	placeChatFormat: {fields: map[string]field{
		"type": asID, "json_schema": {to: placeChatFormat}, "name": asID, "description": {pos: posToolDefinition}, "schema": {to: placeSchema, pos: posToolDefinition}, "strict": asText, "format": {to: placeChatFormat},
		"verbosity": asID,
	}},
	placeChatChoices: {element: placeChatChoice},
	placeChatChoice: {fields: map[string]field{
		"index": asText, "message": {to: placeChatMessage}, "delta": {to: placeChatMessage}, "finish_reason": asID, "logprobs": {is: beside},
	}},

	// OpenAI Responses.
	placeResponses: {fields: map[string]field{
		"input": {to: placeItems, pos: posUser}, "instructions": {to: placeItems, pos: posSystem}, "output": {to: placeItems, pos: posAssistant}, "tools": {to: placeItemTools, pos: posToolDefinition},
		"tool_choice": {to: placeNamed}, "text": {to: placeChatFormat}, "prompt": asText, "model": asID, "stream": asText, "stream_options": asText, "store": asText, "metadata": asText, "include": asText,
		"max_output_tokens": asText, "max_tool_calls": asText, "temperature": asText, "top_p": asText, "top_logprobs": asText, "parallel_tool_calls": asText, "previous_response_id": asID, "conversation": asText,
		"reasoning": asText, "truncation": asID, "user": asText, "safety_identifier": asText, "prompt_cache_key": asText, "service_tier": asID, "background": asText,
		"prompt_cache_retention": asID, "prompt_cache_options": asText, "moderation": asText, "context_management": asText, "access_programs": asText, "image": asText,
		"id": asID, "object": asID, "status": asID, "created_at": asText, "completed_at": asText, "error": asText, "incomplete_details": asText, "usage": asText, "output_text": asText,
	}},
	placeItems: {element: placeItem, object: placeItem},
	placeItem: {peek: true, speaks: true, fields: map[string]field{
		"type": asID, "id": asID, "role": asID, "status": asID, "content": {is: reasoning, to: placeItemContent}, "name": asID, "call_id": asID, "arguments": {is: nested, pos: posToolArgs, keyed: true},
		"input": {pos: posToolArgs}, "output": {to: placeItemContent, pos: posToolResult}, "summary": {is: reasoning}, "encrypted_content": asID, "action": {to: placeInput, pos: posToolArgs},
		"queries": {pos: posToolArgs}, "results": {pos: posRetrieved}, "result": {is: encoded}, "code": {pos: posToolArgs}, "outputs": {pos: posToolResult}, "server_label": asID,
		"tools": {to: placeItemTools, pos: posToolDefinition}, "error": {pos: posToolResult}, "text": asText, "image_url": {is: media}, "file_data": {is: media}, "filename": asText, "file_id": asID, "approval_request_id": asID,
		"approve": asText, "reason": asText, "detail": asID, "file_url": {is: media}, "container_id": asID, "namespace": asID, "phase": asID,
	}},
	placeItemContent: {element: placeItemPart, object: placeItemPart},
	placeItemPart: {peek: true, fields: map[string]field{
		"type": asID, "text": asText, "refusal": asText, "image_url": {is: media, to: placeChatFile}, "file_data": {is: media}, "file_url": {is: media}, "filename": asText, "file_id": asID, "detail": asID,
		"annotations": asText, "logprobs": {is: beside}, "input_audio": {to: placeChatFile},
	}},
	placeItemTools: {element: placeItemTool},
	placeItemTool: {fields: map[string]field{
		"type": asID, "name": asID, "description": asText, "parameters": asSchema, "strict": asText, "format": {to: placeInput}, "server_label": asID, "server_url": asText, "server_description": asText,
		"headers": asOpaque, "authorization": asID, "allowed_tools": asText, "require_approval": asText, "vector_store_ids": asText, "filters": asText, "user_location": asText, "container": asText,
		"search_context_size": asID, "max_num_results": asText, "ranking_options": asText,
	}},

	placeEmbeddings: {fields: map[string]field{
		"input": {pos: posUser}, "model": asID, "user": asText, "dimensions": asText, "encoding_format": asID, "object": asID, "data": asOpaque, "usage": asText,
	}},

	placeEvent: {peek: true, fields: map[string]field{
		"type": asID, "message": {to: placeClaude}, "content_block": {to: placeBlock}, "delta": asText, "index": asText, "usage": asText,
		"choices": {to: placeChatChoices}, "candidates": {to: placeGeminiCandidates},
		"response": {to: placeResponses}, "item": {to: placeItem}, "part": {to: placeItemPart}, "text": asText, "refusal": asText, "arguments": {is: nested, pos: posToolArgs},
		"annotation": asText, "logprobs": {is: beside}, "output_index": asText, "content_index": asText, "sequence_number": asText,
	}},

	// Gemini, with both spellings its server takes.
	placeGemini: {fields: both(map[string]field{
		"contents": {to: placeGeminiContents}, "content": {to: placeGeminiContent}, "systemInstruction": {to: placeGeminiContent, pos: posSystem}, "tools": {to: placeGeminiTools, pos: posToolDefinition},
		"toolConfig": {to: placeNamed}, "generationConfig": {to: placeGeminiConfig}, "safetySettings": asText, "cachedContent": asID, "labels": asText, "model": asID, "store": asText,
		"requests": {to: placeGeminiRequests}, "generateContentRequest": {to: placeGemini}, "taskType": asID, "title": asText, "outputDimensionality": asText,
		"candidates": {to: placeGeminiCandidates}, "usageMetadata": asText, "modelVersion": asID, "responseId": asID, "promptFeedback": asText, "createTime": asID, "embedding": asOpaque, "embeddings": asOpaque,
	})},
	placeGeminiRequests: {element: placeGemini},
	placeGeminiContents: {element: placeGeminiContent, object: placeGeminiContent},
	placeGeminiContent:  {peek: true, speaks: true, fields: map[string]field{"role": asID, "parts": {to: placeGeminiParts}}},
	placeGeminiParts:    {element: placeGeminiPart, object: placeGeminiPart},
	placeGeminiPart: {peek: true, fields: both(map[string]field{
		"text": {is: reasoning}, "thought": asText, "thoughtSignature": asID, "inlineData": {to: placeGeminiBlob}, "fileData": {to: placeGeminiBlob}, "functionCall": {to: placeGeminiCall},
		"functionResponse": {to: placeGeminiResult}, "executableCode": {pos: posToolArgs}, "codeExecutionResult": {pos: posToolResult}, "videoMetadata": asText, "mediaResolution": asText,
	})},
	placeGeminiBlob:   {peek: true, fields: both(map[string]field{"mimeType": asID, "data": {is: encoded}, "fileUri": {is: media}, "displayName": asText})},
	placeGeminiCall:   {fields: map[string]field{"id": asID, "name": asID, "args": asInput}},
	placeGeminiResult: {fields: map[string]field{"id": asID, "name": asID, "response": asResult, "parts": {to: placeGeminiParts, pos: posToolResult}, "scheduling": asID}},
	placeGeminiTools:  {element: placeGeminiTool},
	placeGeminiTool: {fields: both(map[string]field{
		"functionDeclarations": {to: placeGeminiFunctions}, "googleSearch": asText, "googleSearchRetrieval": asText, "codeExecution": asText, "urlContext": asText, "computerUse": asText, "fileSearch": asText,
	})},
	placeGeminiFunctions: {element: placeGeminiFunction},
	placeGeminiFunction: {fields: both(map[string]field{
		"name": asID, "description": asText, "parameters": asSchema, "parametersJsonSchema": asSchema, "response": asSchema, "responseJsonSchema": asSchema, "behavior": asID,
	})},
	placeGeminiConfig: {fields: both(map[string]field{
		"stopSequences": asText, "responseMimeType": asID, "responseSchema": {to: placeSchema, pos: posToolDefinition}, "responseJsonSchema": {to: placeSchema, pos: posToolDefinition}, "temperature": asText, "topP": asText, "topK": asText,
		"candidateCount": asText, "maxOutputTokens": asText, "seed": asText, "presencePenalty": asText, "frequencyPenalty": asText, "responseLogprobs": asText, "logprobs": asText, "thinkingConfig": asText,
		"responseModalities": asText, "speechConfig": asText, "mediaResolution": asID,
	})},
	placeGeminiCandidates: {element: placeGeminiCandidate},
	placeGeminiCandidate: {fields: both(map[string]field{
		"content": {to: placeGeminiContent, pos: posAssistant}, "finishReason": asID, "index": asText, "safetyRatings": asText, "citationMetadata": asText, "groundingMetadata": asText, "tokenCount": asText,
		"avgLogprobs": asText, "logprobsResult": {is: beside}, "finishMessage": asText,
	})},

	// Bedrock Converse.
	placeConverse: {fields: map[string]field{
		"messages": {to: placeConverseMessages}, "system": {to: placeConverseContent, pos: posSystem}, "toolConfig": {to: placeConverseTools, pos: posToolDefinition}, "inferenceConfig": asText,
		"additionalModelRequestFields": asText, "additionalModelResponseFieldPaths": asText, "guardrailConfig": asText, "performanceConfig": asText, "promptVariables": asText, "requestMetadata": asText,
		"modelId": asID, "output": {to: placeConverseMessage}, "stopReason": asID, "usage": asText, "metrics": asText,
	}},
	placeConverseMessages: {element: placeConverseMessage},
	placeConverseMessage:  {peek: true, speaks: true, fields: map[string]field{"role": asID, "content": {to: placeConverseContent}, "message": {to: placeConverseMessage}}},
	placeConverseContent:  {element: placeConverseBlock, object: placeConverseBlock},
	placeConverseBlock: {fields: map[string]field{
		"text": asText, "image": {to: placeConverseFile}, "document": {to: placeConverseFile}, "video": {to: placeConverseFile}, "toolUse": {to: placeConverseToolUse}, "toolResult": {to: placeConverseToolResult},
		"reasoningContent": {to: placeConverseReasoning}, "guardContent": asText, "cachePoint": asOpaque, "json": asResult, "searchResult": {pos: posRetrieved}, "citationsContent": asText,
	}},
	placeConverseReasoning:     {fields: map[string]field{"reasoningText": {to: placeConverseReasoningText}, "redactedContent": asID}},
	placeConverseReasoningText: {peek: true, fields: map[string]field{"text": {is: reasoning}, "signature": asID}},
	placeConverseFile:          {peek: true, fields: map[string]field{"format": asID, "name": asText, "source": {to: placeConverseSource}, "context": asText, "citations": asText}},
	placeConverseSource:        {fields: map[string]field{"bytes": {is: encoded}, "text": asText, "s3Location": asText, "content": {to: placeConverseContent}}},
	placeConverseToolUse:       {fields: map[string]field{"toolUseId": asID, "name": asID, "input": asInput}},
	placeConverseToolResult:    {fields: map[string]field{"toolUseId": asID, "content": {to: placeConverseContent, pos: posToolResult}, "status": asID}},
	placeConverseTools:         {fields: map[string]field{"tools": {to: placeConverseToolList}, "toolChoice": {to: placeConverseTool}}},
	placeConverseToolList:      {element: placeConverseTool},
	placeConverseTool: {fields: map[string]field{
		"toolSpec": {to: placeConverseToolSpec}, "cachePoint": asOpaque, "tool": {to: placeNamed}, "auto": asText, "any": asText, "systemTool": {to: placeNamed},
	}},
	placeConverseToolSpec: {fields: map[string]field{"name": asID, "description": asText, "inputSchema": {to: placeConverseSchema}, "strict": asText}},
	placeConverseSchema:   {fields: map[string]field{"json": asSchema}},
}

// both adds the snake_case spelling of every member.
func both(fields map[string]field) map[string]field {
	for name, f := range fields {
		snake := strings.Builder{}
		for _, c := range []byte(name) {
			if c >= 'A' && c <= 'Z' {
				snake.WriteByte('_')
				c |= 0x20
			}
			snake.WriteByte(c)
		}
		fields[snake.String()] = f
	}
	return fields
}
